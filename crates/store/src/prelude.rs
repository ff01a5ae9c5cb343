//! What nearly every file of this crate names. Files below the pools import what they need themselves.

pub(crate) use jiff::Timestamp;
pub(crate) use serde::Serialize;
pub(crate) use tokio_postgres::{
    Row,
    types::{Json, Type},
};
pub(crate) use uuid::Uuid;

pub(crate) use crate::{
    arrays::Arrays,
    bulkhead::Bulkhead::{self, Auth, Ingest, Maintenance, Watch},
    error::{Result, StoreError},
    ids::{AgentId, HostId, TokenId},
    page::Page,
    params::params,
    pool::Store,
    record::{FromRow, record},
    text_enum::text_enum,
    tx::{Param, Tx},
};
