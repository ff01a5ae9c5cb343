//! What the service reads and writes while it runs.
//!
//! 1. `registration`: newcomers in batches (`Store::registrations_admit`), and the steps of every other
//!    registration on a `RegistrationTx`.
//! 2. `clock` and `instances`: readings of the database's clock; leases of instances (`Store::lease_claim`) and how they
//!    are fenced.
//! 3. `sessions`: heartbeat streams and presence (`Store::sessions_open`), fenced by epochs; `session_digest`: whether
//!    an instance holds what is stored (`Store::sessions_digest`).
//! 4. `samples`: exactly-once storage of samples (`Store::samples_append`).
//! 5. `watermarks`: what is committed, read without locks (`Store::watermarks`).
//! 6. `compaction`: closed hours become chunks and rollups (`Store::compaction_step`).
//! 7. `retention`: partitions, created ahead and dropped (`Store::partitions_drop`); what is removed row by row.
//! 8. `fleet_gauges`: the state of the fleet in numbers (`Store::fleet_gauges`).
//! 9. `fleet_pictures`: what the console draws of the whole fleet (`Store::fleet_pictures_refresh`).
//! 10. `updates`: what agents say about their updates, who is offered what, and the figures of rollouts.
//! 11. `keys`: how a client's key stands to its agent, and next keys (`Store::agent_keys_store`).
//! 12. `settings`: what agents say about their settings, and what they are to run.
//! 13. `trust`: the certificates that agents are told to trust, and what they say they do.

pub(crate) mod clock;
pub(crate) mod compaction;
pub(crate) mod fleet_gauges;
pub(crate) mod fleet_pictures;
pub(crate) mod instances;
pub(crate) mod keys;
pub(crate) mod moves;
pub(crate) mod registration;
mod retention;
pub(crate) mod samples;
pub(crate) mod session_digest;
pub(crate) mod sessions;
pub(crate) mod settings;
pub(crate) mod trust;
pub(crate) mod updates;
mod watermarks;
