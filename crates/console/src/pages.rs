//! The pages: one file each. A page is read, rendered, and works without scripts; the same functions
//! render the parts of it that are live. `routes` has their addresses.

pub mod activity;
pub mod agent;
pub mod approvals;
pub mod bulk;
pub mod fleet;
pub mod host;
pub mod hosts;
pub mod live;
pub mod me;
pub mod people;
pub mod plots;
pub mod rollout;
pub mod service;
pub mod settings;
pub mod sign_in;
pub mod tokens;
pub mod trust;
pub mod updates;
pub mod welcome;
