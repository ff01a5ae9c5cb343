//! Labels that several options of one command give.

use svc_store::Labels;

use super::Usage;

/// All of them. One key with two values is a usage error.
pub fn joined(given: Vec<Labels>) -> Result<Labels, Usage> {
    Labels::joined(given).map_err(|error| Usage(error.to_string()))
}
