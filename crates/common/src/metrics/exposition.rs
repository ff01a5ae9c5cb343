//! The two formats of `/metrics`: OpenMetrics for scrapers that ask for it, and Prometheus' own text format for all
//! others (`promtool`, older scrapers, people).
//!
//! The registry writes OpenMetrics alone. The text format differs in four points: a counter is announced under the name
//! of its samples (`_total`), an info is a gauge, units have no line, and no line marks the end.

use hyper::{
    HeaderMap,
    header::{self, HeaderName},
};

const OPENMETRICS: &str = "application/openmetrics-text";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exposition {
    OpenMetrics,
    Text,
}

impl Exposition {
    /// The format for a request with these headers.
    pub fn negotiated(headers: &HeaderMap) -> Self {
        let accept = headers.get_all(header::ACCEPT).iter();
        let accept: Vec<&str> = accept.filter_map(|value| value.to_str().ok()).collect();
        Self::accepted(&accept.join(","))
    }

    /// OpenMetrics if the client names it and prefers it to text.
    fn accepted(accept: &str) -> Self {
        let mut openmetrics = 0.0;
        let mut text: f32 = 0.0;
        for range in accept.split(',') {
            let (media, parameters) = range.split_once(';').unwrap_or((range, ""));
            let weight = weight(parameters);
            match media.trim().to_ascii_lowercase().as_str() {
                OPENMETRICS => openmetrics = weight.max(openmetrics),
                "text/plain" | "text/*" => text = weight.max(text),
                _ => {}
            }
        }
        match openmetrics > 0.0 && openmetrics >= text {
            true => Self::OpenMetrics,
            false => Self::Text,
        }
    }

    /// The headers of the answer.
    pub fn headers(self) -> [(HeaderName, &'static str); 2] {
        let kind = match self {
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Self::Text => "text/plain; version=0.0.4; charset=utf-8",
        };
        [(header::CONTENT_TYPE, kind), (header::VARY, "Accept")]
    }

    /// `page` is OpenMetrics.
    pub fn write(self, page: String) -> String {
        match self {
            Self::OpenMetrics => page,
            Self::Text => text_format(&page),
        }
    }
}

/// The `q` of a media range, 1 if it has none.
fn weight(parameters: &str) -> f32 {
    let q = parameters.split(';').find_map(|parameter| {
        let (name, value) = parameter.split_once('=')?;
        name.trim().eq_ignore_ascii_case("q").then(|| value.trim())
    });
    q.map_or(1.0, |q| q.parse().unwrap_or(0.0))
}

fn text_format(page: &str) -> String {
    let mut text = String::with_capacity(page.len());
    // HELP comes before TYPE, and its name depends on the type: it waits here.
    let mut help = None;
    for line in page.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            help = rest.split_once(' ');
        } else if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').unwrap_or((rest, "untyped"));
            let (suffix, kind) = match kind {
                "counter" => ("_total", kind),
                "info" => ("_info", "gauge"),
                "unknown" => ("", "untyped"),
                _ => ("", kind),
            };
            if let Some((_, words)) = help.take() {
                text.extend(["# HELP ", name, suffix, " ", words, "\n"]);
            }
            text.extend(["# TYPE ", name, suffix, " ", kind, "\n"]);
        } else if !line.starts_with('#') {
            text.extend([line, "\n"]);
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn openmetrics_is_for_clients_that_prefer_it() {
        let prometheus = "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,\
                          text/plain;version=0.0.4;q=0.5,*/*;q=0.1";
        for accept in [
            prometheus,
            "application/openmetrics-text",
            "Application/OpenMetrics-Text; q=0.5, */*",
        ] {
            assert_eq!(
                Exposition::accepted(accept),
                Exposition::OpenMetrics,
                "{accept}"
            );
        }
        for accept in [
            "",
            "*/*",
            "text/plain;version=0.0.4",
            "text/html",
            "application/openmetrics-text;q=0",
            "application/openmetrics-text;q=0.3,text/plain;version=0.0.4;q=0.5",
            "application/openmetrics-text;q=x",
        ] {
            assert_eq!(Exposition::accepted(accept), Exposition::Text, "{accept}");
        }
    }

    #[test]
    fn the_text_format_names_counters_and_infos_by_their_samples() {
        let page = "# HELP a Things.\n# TYPE a counter\na_total{x=\"y\"} 1\n# HELP build The version.\n# TYPE build info\n\
                    build_info{v=\"1\"} 1\n# HELP c C.\n# TYPE c gauge\n# UNIT c seconds\nc 2\n# EOF\n";
        let text = "# HELP a_total Things.\n# TYPE a_total counter\na_total{x=\"y\"} 1\n# HELP build_info The version.\n\
                    # TYPE build_info gauge\nbuild_info{v=\"1\"} 1\n# HELP c C.\n# TYPE c gauge\nc 2\n";
        assert_eq!(Exposition::Text.write(page.into()), text);
        assert_eq!(Exposition::OpenMetrics.write(page.into()), page);
    }
}
