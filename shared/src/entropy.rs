//! The door to randomness.

use std::fmt;
use std::sync::Arc;

use parking_lot::Mutex;
use rand::rngs::ChaCha12Rng;
use rand::{RngExt as _, SeedableRng as _};
use uuid::Uuid;

/// A source of random numbers.
pub trait Entropy: fmt::Debug + Send + Sync + 'static {
    /// A uniform 64-bit number.
    fn u64(&self) -> u64;

    /// A uniform number in `0.0..1.0`.
    fn fraction(&self) -> f64 {
        // 53 bits are what an f64 can hold exactly.
        #[expect(clippy::cast_precision_loss, reason = "53 bits fit an f64 exactly")]
        let value = (self.u64() >> 11) as f64;
        value / 9_007_199_254_740_992.0
    }

    /// A random (version 4) UUID.
    fn uuid(&self) -> Uuid {
        let bytes = (u128::from(self.u64()) << 64) | u128::from(self.u64());
        uuid::Builder::from_random_bytes(bytes.to_be_bytes()).into_uuid()
    }
}

/// A shared source.
pub type SharedEntropy = Arc<dyn Entropy>;

/// A generator that a seed determines; seeded from the operating system in production.
pub struct SeededEntropy(Mutex<ChaCha12Rng>);

impl SeededEntropy {
    /// The same seed gives the same sequence.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(Mutex::new(ChaCha12Rng::seed_from_u64(seed)))
    }

    /// Seeded from the operating system.
    #[must_use]
    #[expect(clippy::disallowed_methods, reason = "this is the door to randomness")]
    pub fn from_os() -> Self {
        Self(Mutex::new(ChaCha12Rng::from_rng(&mut rand::rng())))
    }
}

impl fmt::Debug for SeededEntropy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SeededEntropy")
    }
}

impl Entropy for SeededEntropy {
    fn u64(&self) -> u64 {
        self.0.lock().random()
    }
}
