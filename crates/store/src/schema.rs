//! The schema and the roles: what must be in the database before the service can use it.
//!
//! 1. `installation`: roles and database of a new installation.
//! 2. `server_facts`: the server, its schema and the owner of the tables (`ServerFacts`).
//! 3. `migrate`: the schema (`Store::migrate`), and whether it is that of this program.
//! 4. `web_role` and `runtime_role`: the privileges of the web application (`Store::web_role_grant`), and of a service
//!    that does not own the tables.

mod installation;
pub(crate) mod migrate;
mod runtime_role;
pub(crate) mod server_facts;
pub(crate) mod web_role;
