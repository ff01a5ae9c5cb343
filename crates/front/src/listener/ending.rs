//! How requests end: each is counted once, by its method, its gRPC status code and the reason of a refusal.
//!
//! The status of a refused call is in the headers of its response, that of a stream in its trailers. A request that
//! ends without either was cancelled: its client, or its connection, went away.

use std::sync::Arc;

use http::HeaderMap;
use svc_common::metrics::{ReasonName, Variant};
use tonic::Code;

use super::{Refusals, gate::Gate};
use crate::metrics::Outcome;

#[derive(Debug)]
pub(super) struct Ending {
    gate: Arc<Gate>,
    method: &'static str,
    /// Finds the reason of a refusal.
    reason: fn(&HeaderMap) -> Option<&'static str>,
    counted: bool,
}

impl Ending {
    /// Counts a request that begins.
    pub(super) fn begin(
        gate: Arc<Gate>,
        path: &str,
        Refusals { method, reason, .. }: Refusals,
    ) -> Self {
        let method = method(path);
        gate.metrics.request(method);
        Self {
            gate,
            method,
            reason,
            counted: false,
        }
    }

    /// Counts the end of the request, if these headers or trailers have its status.
    pub(super) fn see(&mut self, headers: &HeaderMap) {
        let Some(code) = headers.get("grpc-status") else {
            return;
        };
        match Code::from_bytes(code.as_bytes()) {
            Code::Ok => self.count(Code::Ok, None),
            code => self.count(code, (self.reason)(headers)),
        }
    }

    fn count(&mut self, code: Code, reason: Option<&'static str>) {
        if self.counted {
            return;
        }
        self.counted = true;
        self.gate.metrics.ended(Outcome {
            method: self.method,
            code: Variant(code),
            reason: ReasonName(reason),
        });
    }
}

impl Drop for Ending {
    fn drop(&mut self) {
        self.count(Code::Cancelled, None);
    }
}
