//! Scripts, styles and pictures, embedded in the binary and served under names that contain their
//! hash, so that browsers keep them for ever.
//!
//! `assets/vendor` holds files of other projects, unchanged; a test compares them with the checksums
//! in `assets/vendor/SHA256SUMS`.

use std::sync::LazyLock;

use axum::{
    body::Bytes,
    extract::Path,
    http::{StatusCode, header},
    response::{IntoResponse, Response},
};

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

/// Names with their hashes: `app.js` is served as `app.1a2b3c4d5e6f7a8b.js`.
static HASHED: LazyLock<Vec<(String, &'static Asset)>> = LazyLock::new(|| {
    let hashed = ASSETS.iter().map(|asset| {
        let hash = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, asset.body);
        let hash = hex(&hash.as_ref()[..8]);
        let (stem, ending) = asset.name.rsplit_once('.').unwrap_or((asset.name, ""));
        (format!("{stem}.{hash}.{ending}"), asset)
    });
    hashed.collect()
});

/// The path of an asset, for templates.
pub fn asset(name: &str) -> String {
    let found = HASHED.iter().find(|(_, asset)| asset.name == name);
    found.map_or_else(String::new, |(hashed, _)| format!("/assets/{hashed}"))
}

pub async fn serve(Path(name): Path<String>) -> Response {
    match HASHED.iter().find(|(hashed, _)| *hashed == name) {
        Some((_, asset)) => {
            let headers = [
                (header::CONTENT_TYPE, asset.kind),
                (header::CACHE_CONTROL, FOREVER),
            ];
            (headers, Bytes::from_static(asset.body)).into_response()
        }
        None => StatusCode::NOT_FOUND.into_response(),
    }
}

pub async fn favicon() -> Response {
    let body = include_bytes!("../assets/favicon.svg");
    let headers = [
        (header::CONTENT_TYPE, PICTURE),
        (header::CACHE_CONTROL, "public, max-age=86400"),
    ];
    (headers, Bytes::from_static(body)).into_response()
}

/// A response of another media type than HTML.
pub fn typed(kind: &'static str, body: impl IntoResponse) -> Response {
    ([(header::CONTENT_TYPE, kind)], body).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

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
