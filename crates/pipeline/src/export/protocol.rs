//! The two protocols of OTLP, protobuf over HTTP/1.1 and gRPC: what a request looks like, and what its answer means.

use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use http::{HeaderMap, HeaderName, HeaderValue, Request, StatusCode, header};
use http_body_util::Full;
use prost::Message;
use secrecy::{ExposeSecret, SecretString};
use tonic::Code;
use url::Url;

use super::otlp::ExportResponse;

/// How much of a receiver's message is logged.
const MESSAGE_CHARS: usize = 200;
/// A flag (0: not compressed) and the length of the message.
const GRPC_PREFIX: usize = 5;

/// Where the export goes.
#[derive(Clone, Debug)]
pub struct Receiver {
    pub protocol: Protocol,
    /// The protocol's own path is appended to it.
    pub url: Url,
    /// Further headers, as for an API key.
    pub headers: Vec<(HeaderName, SecretString)>,
    /// The pauses before a request is repeated that may succeed later. No variable sets them; tests shorten them.
    pub retries: [Duration; 3],
}

/// The usual pauses.
pub const RETRIES: [Duration; 3] = [
    Duration::from_secs(1),
    Duration::from_secs(4),
    Duration::from_secs(15),
];

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Protocol {
    #[default]
    Http,
    Grpc,
}

/// An answer, read to its end.
#[derive(Debug)]
pub(super) struct Answer {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub body: Bytes,
    pub trailers: HeaderMap,
}

/// The receiver does not take a request.
#[derive(Debug, thiserror::Error)]
pub(super) enum Refused {
    #[error("the answer is {0}")]
    Status(StatusCode),
    #[error("the answer is the gRPC status {0:?}")]
    Code(Code),
}

impl Refused {
    /// Whether it may take the same request later, as the specification of OTLP says.
    pub(super) fn is_passing(&self) -> bool {
        match self {
            Self::Status(status) => matches!(status.as_u16(), 429 | 502 | 503 | 504),
            Self::Code(code) => matches!(
                code,
                Code::Cancelled
                    | Code::DeadlineExceeded
                    | Code::ResourceExhausted
                    | Code::Aborted
                    | Code::OutOfRange
                    | Code::Unavailable
                    | Code::DataLoss
            ),
        }
    }
}

impl Protocol {
    /// Reads the names that OpenTelemetry's own settings have.
    pub fn parse(text: &str) -> Option<Self> {
        match text {
            "http/protobuf" => Some(Self::Http),
            "grpc" => Some(Self::Grpc),
            _ => None,
        }
    }

    /// What TLS negotiates.
    pub(super) fn alpn(self) -> &'static [u8] {
        match self {
            Self::Http => b"http/1.1",
            Self::Grpc => b"h2",
        }
    }

    pub(super) fn request(
        self,
        receiver: &Receiver,
        message: Bytes,
    ) -> Result<Request<Full<Bytes>>, http::Error> {
        let url = &receiver.url;
        let base = url.path().trim_end_matches('/');
        let authority = url.authority();
        let request = match self {
            Self::Http => Request::post(format!("{base}/v1/metrics"))
                .header(header::HOST, authority)
                .header(header::CONTENT_TYPE, "application/x-protobuf"),
            Self::Grpc => {
                const METHOD: &str =
                    "opentelemetry.proto.collector.metrics.v1.MetricsService/Export";
                let target = format!("{}://{authority}{base}/{METHOD}", url.scheme());
                Request::post(target)
                    .header(header::TE, "trailers")
                    .header(header::CONTENT_TYPE, "application/grpc")
            }
        };
        let mut request = request.body(Full::new(match self {
            Self::Http => message,
            Self::Grpc => framed(&message),
        }))?;
        for (name, value) in &receiver.headers {
            let mut value = HeaderValue::from_str(value.expose_secret())?;
            value.set_sensitive(true);
            request.headers_mut().append(name, value);
        }
        Ok(request)
    }

    /// Whether the receiver took the request, and what it says about points of it that it rejected.
    pub(super) fn outcome(self, answer: &Answer) -> Result<Option<String>, Refused> {
        if !answer.status.is_success() {
            return Err(Refused::Status(answer.status));
        }
        let message = match self {
            Self::Http => &answer.body[..],
            Self::Grpc => {
                match grpc_code(answer) {
                    Code::Ok => {}
                    code => return Err(Refused::Code(code)),
                }
                answer.body.get(GRPC_PREFIX..).unwrap_or_default()
            }
        };
        // An answer that is no message has nothing to say: the status was good.
        let response = ExportResponse::decode(message).unwrap_or_default();
        Ok(response
            .partial_success
            .filter(|partial| partial.rejected_data_points > 0)
            .map(|partial| {
                let said: String = partial.error_message.chars().take(MESSAGE_CHARS).collect();
                let points = partial.rejected_data_points;
                format!("the receiver rejected {points} data points: {said:?}")
            }))
    }
}

fn framed(message: &[u8]) -> Bytes {
    let mut framed = BytesMut::with_capacity(GRPC_PREFIX + message.len());
    framed.put_u8(0);
    // A request has about 1 MiB.
    framed.put_u32(u32::try_from(message.len()).unwrap_or(u32::MAX));
    framed.put_slice(message);
    framed.freeze()
}

/// The status is in the trailers, or in the headers of an answer that has nothing else.
fn grpc_code(answer: &Answer) -> Code {
    let status = answer.trailers.get("grpc-status");
    let status = status.or_else(|| answer.headers.get("grpc-status"));
    status.map_or(Code::Unknown, |code| Code::from_bytes(code.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::{super::otlp::PartialSuccess, *};

    fn answer(status: u16, grpc_status: Option<&'static str>, body: Vec<u8>) -> Answer {
        let code = grpc_status.map(HeaderValue::from_static);
        Answer {
            status: StatusCode::from_u16(status).unwrap(),
            headers: HeaderMap::new(),
            body: body.into(),
            trailers: code
                .map(|code| (HeaderName::from_static("grpc-status"), code))
                .into_iter()
                .collect(),
        }
    }

    fn partial() -> Vec<u8> {
        let partial_success = Some(PartialSuccess {
            rejected_data_points: 7,
            error_message: "too\nold".repeat(100),
        });
        ExportResponse { partial_success }.encode_to_vec()
    }

    #[test]
    fn only_failures_that_may_pass_are_repeated() {
        use Protocol::*;
        let passing = |protocol: Protocol, answer| {
            let outcome = protocol.outcome(&answer);
            outcome.map_err(|error| error.is_passing())
        };
        for status in [429, 502, 503, 504] {
            assert_eq!(passing(Http, answer(status, None, vec![])), Err(true));
            assert_eq!(passing(Grpc, answer(status, None, vec![])), Err(true));
        }
        for status in [301, 400, 401, 404, 413, 500] {
            assert_eq!(passing(Http, answer(status, None, vec![])), Err(false));
        }
        assert_eq!(passing(Http, answer(200, None, b"noise".into())), Ok(None));
        assert_eq!(passing(Grpc, answer(200, Some("0"), vec![])), Ok(None));
        for unavailable in ["1", "4", "8", "14"] {
            let answer = answer(200, Some(unavailable), vec![]);
            assert_eq!(passing(Grpc, answer), Err(true), "{unavailable}");
        }
        for refused in [Some("3"), Some("12"), Some("16"), None] {
            let answer = answer(200, refused, vec![]);
            assert_eq!(passing(Grpc, answer), Err(false), "{refused:?}");
        }
    }

    #[test]
    fn rejected_points_are_reported_in_one_short_line() {
        let http = Protocol::Http.outcome(&answer(200, None, partial()));
        let framed = framed(&partial()).to_vec();
        let grpc = Protocol::Grpc.outcome(&answer(200, Some("0"), framed));
        for said in [http.unwrap().unwrap(), grpc.unwrap().unwrap()] {
            assert!(said.starts_with("the receiver rejected 7 data points: \"too"));
            assert!(!said.contains('\n') && said.len() < 300, "{said}");
        }
    }
}
