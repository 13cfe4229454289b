//! Which version of a record a client is willing to change.

use std::fmt;

use super::error::AppError;

/// What a client expects of a record that it changes; checked in the same step as the write, so
/// that of two clients that read the same version only one changes it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Expected(Option<Vec<String>>);

impl Expected {
    /// Any version.
    pub const ANY: Self = Self(None);

    /// One of these versions.
    #[must_use]
    pub fn one_of(versions: Vec<String>) -> Self {
        Self(Some(versions))
    }

    /// Fails unless this version may be changed.
    ///
    /// # Errors
    /// [`AppError::Changed`].
    pub fn check(&self, version: impl fmt::Display) -> Result<(), AppError> {
        match &self.0 {
            Some(wanted) if !wanted.contains(&version.to_string()) => Err(AppError::Changed),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_named_version_may_be_changed() {
        assert!(Expected::ANY.check("1.7").is_ok());
        let expected = Expected::one_of(vec!["1.7".to_owned(), "1.8".to_owned()]);
        assert!(expected.check("1.8").is_ok());
        assert!(matches!(expected.check("1.9"), Err(AppError::Changed)));
        assert!(Expected::one_of(Vec::new()).check("1.7").is_err());
    }
}
