//! What nearly every file of `schema`, `service` and `people` names. The other folders are below it and import what they
//! need themselves.

pub(crate) use jiff::Timestamp;
pub(crate) use serde::Serialize;
pub(crate) use tokio_postgres::{
    Row,
    types::{Json, Type},
};
pub(crate) use uuid::Uuid;

pub(crate) use crate::{
    pg::{
        bulkhead::Bulkhead::{self, Auth, Ingest, Maintenance, Watch},
        error::{Result, StoreError},
        pool::Store,
        tx::{Param, Tx},
    },
    statements::{
        arrays::Arrays,
        page::Page,
        params::params,
        record::{FromRow, record},
    },
    values::{
        ids::{AgentId, HostId, TokenId},
        text_enum::text_enum,
    },
};
