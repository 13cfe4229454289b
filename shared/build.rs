//! Tells the program when it was built, in the form of the reference's platform stamps.

use jiff::Timestamp;

#[expect(clippy::disallowed_methods, reason = "a build has no other clock")]
fn main() {
    // A build that is to be repeated byte for byte names its time.
    println!("cargo:rerun-if-env-changed=SOURCE_DATE_EPOCH");
    println!("cargo:rerun-if-changed=build.rs");
    let named = std::env::var("SOURCE_DATE_EPOCH").ok().and_then(|text| text.parse().ok());
    let named = named.and_then(|seconds| Timestamp::from_second(seconds).ok());
    let built = named.unwrap_or_else(Timestamp::now);
    println!("cargo:rustc-env=MUSTER_BUILD_STAMP={}", built.strftime("%Y%m%dT%H%M%SZ"));
}
