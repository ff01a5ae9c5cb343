//! What people ask and decide, by the admin commands and in the web console.
//!
//! 1. `tokens`, `agents`, `hosts`: what is shown of them, and the decisions.
//! 2. `books`: whether the samples of an agent add up.
//! 3. `signing_keys`: which keys the instances sign with and accept.
//! 4. `rollouts`: releases of the agent and their rollouts.
//! 5. `keys`: the keys of an agent, and the request for other ones.
//! 6. `settings`: settings of agents by label.
//! 7. `trust`: the certificates that agents are to trust, and who does not.
//! 8. `overview`: counts of everything (`Store::overview`).
//! 9. `console`: the queries of the console's pages, its people and sessions, and its own schema.

pub(crate) mod agents;
pub(crate) mod books;
pub(crate) mod cells;
pub(crate) mod console;
pub(crate) mod hosts;
pub(crate) mod keys;
pub(crate) mod overview;
pub(crate) mod rollouts;
pub(crate) mod settings;
pub(crate) mod signing_keys;
pub(crate) mod tokens;
pub(crate) mod trust;
