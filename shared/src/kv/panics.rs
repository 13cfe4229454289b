//! What an engine panics with on damaged files becomes an error, said once.

use std::any::Any;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, set_hook, take_hook};
use std::sync::Once;

thread_local! {
    /// Whether a panic of this thread ends in [`caught`].
    static IS_CAUGHT: Cell<bool> = const { Cell::new(false) };
}

/// Runs `work`; of a panic in it the error is the message. The caller reports that, so the
/// process's panic hook, which would print a backtrace for each damaged file, is not called.
pub(super) fn caught<T>(work: impl FnOnce() -> T) -> Result<T, String> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let others = take_hook();
        set_hook(Box::new(move |info| {
            if !IS_CAUGHT.get() {
                others(info);
            }
        }));
    });
    let outer = IS_CAUGHT.replace(true);
    let outcome = catch_unwind(AssertUnwindSafe(work));
    IS_CAUGHT.set(outer);
    outcome.map_err(|payload| message(payload.as_ref()).to_owned())
}

fn message(payload: &(dyn Any + Send)) -> &str {
    if let Some(text) = payload.downcast_ref::<&'static str>() {
        return text;
    }
    payload.downcast_ref::<String>().map_or("no message", String::as_str)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_an_error_with_its_text() {
        let page = 7;
        assert_eq!(caught(|| 1), Ok(1));
        assert_eq!(caught(|| panic!("torn")), Err::<(), _>("torn".to_owned()));
        assert_eq!(caught(|| panic!("page {page}")), Err::<(), _>("page 7".to_owned()));
    }

    #[test]
    fn a_panic_outside_is_not_kept_quiet() {
        let inner = caught(|| {
            let inner = caught(|| panic!("inner"));
            (inner, IS_CAUGHT.get())
        });
        assert_eq!(inner, Ok((Err::<(), _>("inner".to_owned()), true)));
        assert!(!IS_CAUGHT.get());
    }
}
