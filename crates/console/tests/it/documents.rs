//! What the documents and templates promise.

use anyhow::Result;
use svc_common::settings::Fallback;
use svc_console::config::VARIABLES;

#[test]
fn the_document_lists_every_variable() -> Result<()> {
    let document = std::fs::read_to_string(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../docs/console.md"
    ))?;
    for variable in VARIABLES {
        let fallback = match variable.fallback {
            Fallback::Required => "required".to_owned(),
            Fallback::Default(value) => format!("`{value}`"),
            Fallback::Unset(text) => text.to_owned(),
        };
        let row = format!(
            "| `{}` | {fallback} | {} |",
            variable.name, variable.meaning
        );
        assert!(document.contains(&row), "docs/console.md lacks: {row}");
    }
    Ok(())
}

/// These fail at run time under the Content-Security-Policy, or are ignored by htmx 4.
#[test]
fn templates_use_nothing_that_the_policy_forbids() -> Result<()> {
    let templates = std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/templates"))?;
    for template in templates {
        let path = template?.path();
        let text = std::fs::read_to_string(&path)?;
        for banned in [
            "hx-on",
            "js:",
            "onclick=",
            "style=",
            "<style",
            "hx-vals",
            "javascript:",
        ] {
            assert!(!text.contains(banned), "{} has {banned}", path.display());
        }
        let inline = text
            .split("<script")
            .skip(1)
            .find(|tag| !tag.starts_with(" src="));
        assert_eq!(inline, None, "{}", path.display());
    }
    Ok(())
}

#[test]
fn the_client_is_small() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/assets");
    let files = [
        "vendor/htmx.min.js",
        "vendor/hx-sse.min.js",
        "vendor/uPlot.iife.min.js",
        "vendor/uPlot.min.css",
        "app.js",
        "plots.js",
        "console.css",
    ];
    let sizes = files.map(|file| std::fs::metadata(format!("{folder}/{file}")).unwrap().len());
    let total: u64 = sizes.iter().sum();
    assert!(total < 140 * 1024, "{total} bytes before compression");
}
