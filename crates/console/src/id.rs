//! The id in a path. What is not an id leads to the same page as an id that nothing has.

use axum::{
    extract::{FromRequestParts, Path},
    http::request::Parts,
};
use svc_store::{AgentId, HostId, TokenId};
use uuid::Uuid;

use crate::error::AppError;

/// The id of a host, an agent or a token.
#[derive(Debug)]
pub struct Id<T>(pub T);

/// What has a page of its own.
pub trait Subject {
    /// What a person reads if there is no such thing.
    const MISSING: AppError;

    fn with_id(id: Uuid) -> Self;
}

macro_rules! subjects {
    ($($id:ident: $missing:literal;)+) => {$(
        impl Subject for $id {
            const MISSING: AppError = AppError::NotFound($missing);

            fn with_id(id: Uuid) -> Self {
                Self(id)
            }
        }
    )+};
}

subjects! {
    HostId: "There is no such host. Look for it by its name in the list of hosts; is:retired finds retired ones.";
    AgentId: "There is no such agent. The page of its host lists every agent that the machine ever had.";
    TokenId: "There is no such token. The list of tokens has all of them.";
}

impl<T: Subject, S: Send + Sync> FromRequestParts<S> for Id<T> {
    type Rejection = AppError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, AppError> {
        let path = Path::<Uuid>::from_request_parts(parts, state).await;
        path.map(|Path(id)| Self(T::with_id(id)))
            .map_err(|_| T::MISSING)
    }
}
