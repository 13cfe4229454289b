//! Size constants. Field names elsewhere end in their unit (`_bytes`, `_mib`, `_ms`).

/// Bytes in one MiB.
pub const MIB: u64 = 1024 * 1024;
/// Bytes in one GiB.
pub const GIB: u64 = 1024 * MIB;
