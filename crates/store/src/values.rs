//! Ids, closed sets and records that several folders share. Nothing here reads or writes the database.
//!
//! 1. `ids`: `AgentId`, `HostId`, `TokenId` and `UserId`.
//! 2. `status` and `liveness`: the states of an agent (`AgentStatus`, `Presence`), and whether its identity is in use (`Liveness`).
//! 3. `facts` and `labels`: what an agent says about its machine (`HostFacts`); what its tokens and people say (`Labels`).
//!    `key_prefix`: what the fingerprint of its key begins with.
//! 4. `event_kind`: what the records of events tell.
//! 5. `vitals`: the kinds of parts of a sample, declared once.
//! 6. `instance_load`: how full an instance is.
//! 7. `rollout`: the stages, hours and states of updates.
//! 8. `agent_settings`: settings of agents by label.
//! 9. `migration`: one step of the schema.
//! 10. `text_enum`: how a closed set is declared that is a text in the database.

pub(crate) mod agent_settings;
pub(crate) mod event_kind;
pub(crate) mod facts;
pub(crate) mod ids;
pub(crate) mod instance_load;
pub(crate) mod key_prefix;
pub(crate) mod labels;
pub(crate) mod liveness;
pub(crate) mod migration;
pub(crate) mod rollout;
pub(crate) mod status;
pub(crate) mod text_enum;
pub(crate) mod vitals;
