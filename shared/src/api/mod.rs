//! JSON types of the public API, one file per resource.
