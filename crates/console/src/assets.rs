//! Scripts, styles and pictures, embedded in the binary and served under names that contain their
//! hash, so that browsers keep them for ever. Each is compressed once, at its first use.
//!
//! `assets/vendor` holds files of other projects, unchanged; a test compares them with the checksums
//! in `assets/vendor/SHA256SUMS`.

use std::{
    io::{self, Write},
    sync::LazyLock,
};

use axum::{
    body::Bytes,
    extract::Path,
    http::{HeaderMap, StatusCode, header},
    response::{IntoResponse, Response},
};
use flate2::{Compression, write::GzEncoder};

use crate::secret::hex;

const FOREVER: &str = "public, max-age=31536000, immutable";
const SCRIPT: &str = "text/javascript; charset=utf-8";
const STYLE: &str = "text/css; charset=utf-8";
const PICTURE: &str = "image/svg+xml";

struct Asset {
    name: &'static str,
    kind: &'static str,
    body: &'static [u8],
}

macro_rules! embed {
    ($($name:literal, $file:literal, $kind:expr;)+) => {
        const ASSETS: &[Asset] = &[$(Asset {
            name: $name,
            kind: $kind,
            body: include_bytes!(concat!("../assets/", $file)),
        }),+];
    };
}

embed! {
    "htmx.js", "vendor/htmx.min.js", SCRIPT;
    "hx-sse.js", "vendor/hx-sse.min.js", SCRIPT;
    "uplot.js", "vendor/uPlot.iife.min.js", SCRIPT;
    "uplot.css", "vendor/uPlot.min.css", STYLE;
    "app.js", "app.js", SCRIPT;
    "plots.js", "plots.js", SCRIPT;
    "console.css", "console.css", STYLE;
    "favicon.svg", "favicon.svg", PICTURE;
}

/// An asset as it is served: `app.js` has the name `app.1a2b3c4d5e6f7a8b.js`.
struct Hashed {
    name: String,
    asset: &'static Asset,
    /// Empty if it cannot be compressed.
    gzip: Bytes,
}

static HASHED: LazyLock<Vec<Hashed>> = LazyLock::new(|| {
    let hashed = ASSETS.iter().map(|asset| {
        let hash = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, asset.body);
        let hash = hex(&hash.as_ref()[..8]);
        let (stem, ending) = asset.name.rsplit_once('.').unwrap_or((asset.name, ""));
        Hashed {
            name: format!("{stem}.{hash}.{ending}"),
            asset,
            gzip: gzip(asset.body).unwrap_or_default().into(),
        }
    });
    hashed.collect()
});

fn gzip(body: &[u8]) -> io::Result<Vec<u8>> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(body)?;
    encoder.finish()
}

/// The path of an asset, for templates.
pub fn asset(name: &str) -> String {
    let found = HASHED.iter().find(|hashed| hashed.asset.name == name);
    found.map_or_else(String::new, |hashed| format!("/assets/{}", hashed.name))
}

pub async fn serve(Path(name): Path<String>, headers: HeaderMap) -> Response {
    let found = HASHED.iter().find(|hashed| hashed.name == name);
    answer(found, &headers, FOREVER)
}

pub async fn favicon(headers: HeaderMap) -> Response {
    let found = HASHED
        .iter()
        .find(|hashed| hashed.asset.name == "favicon.svg");
    answer(found, &headers, "public, max-age=86400")
}

fn answer(found: Option<&Hashed>, headers: &HeaderMap, cache: &'static str) -> Response {
    let Some(Hashed { asset, gzip, .. }) = found else {
        return StatusCode::NOT_FOUND.into_response();
    };
    let common = [
        (header::CONTENT_TYPE, asset.kind),
        (header::CACHE_CONTROL, cache),
        (header::VARY, "Accept-Encoding"),
    ];
    match accepts_gzip(headers) && !gzip.is_empty() {
        true => {
            let encoding = [(header::CONTENT_ENCODING, "gzip")];
            (common, encoding, gzip.clone()).into_response()
        }
        false => (common, Bytes::from_static(asset.body)).into_response(),
    }
}

/// Whether the client names gzip, and not with the weight 0.
fn accepts_gzip(headers: &HeaderMap) -> bool {
    let values = headers.get_all(header::ACCEPT_ENCODING).iter();
    let mut codings = values
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','));
    codings.any(|coding| {
        let (name, weight) = coding.split_once(';').unwrap_or((coding, ""));
        let weight = weight.trim().strip_prefix("q=").unwrap_or("1");
        name.trim().eq_ignore_ascii_case("gzip") && weight.parse().is_ok_and(|q: f32| q > 0.0)
    })
}

/// A response of another media type than HTML.
pub fn typed(kind: &'static str, body: impl IntoResponse) -> Response {
    ([(header::CONTENT_TYPE, kind)], body).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gzip_is_for_clients_that_name_it() {
        let accepts = |text: &str| {
            accepts_gzip(&HeaderMap::from_iter([(
                header::ACCEPT_ENCODING,
                text.parse().unwrap(),
            )]))
        };
        for yes in ["gzip", "br, GZIP;q=0.5", "deflate,gzip;q=1.0"] {
            assert!(accepts(yes), "{yes}");
        }
        for no in ["", "br", "gzip;q=0", "gzip;q=x", "xgzip"] {
            assert!(!accepts(no), "{no}");
        }
    }

    #[test]
    fn vendored_files_are_unchanged() {
        let sums = include_str!("../assets/vendor/SHA256SUMS");
        let files = [
            ("htmx.min.js", "htmx.js"),
            ("hx-sse.min.js", "hx-sse.js"),
            ("uPlot.iife.min.js", "uplot.js"),
            ("uPlot.min.css", "uplot.css"),
        ];
        for (file, name) in files {
            let asset = ASSETS.iter().find(|asset| asset.name == name).unwrap();
            let hash = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, asset.body);
            let line = format!("{}  {file}", hex(hash.as_ref()));
            assert!(sums.lines().any(|known| known == line), "{line}");
        }
    }
}
