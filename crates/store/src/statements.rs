//! What statements are written with.
//!
//! 1. `params` and `arrays`: how values become parameters, one by one or as one array per column.
//! 2. `record`: how rows become structs.
//! 3. `page`: bounded lists (`Page`).
//! 4. `locks`: the advisory locks and their keys.

pub(crate) mod arrays;
pub(crate) mod locks;
pub(crate) mod page;
pub(crate) mod params;
pub(crate) mod record;
