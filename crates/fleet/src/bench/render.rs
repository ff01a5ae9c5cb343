//! Results as Markdown, and their place in the documentation.
//!
//! The document has markers for each stage, and every figure between them comes from the stored results. The text around
//! them says what limits the figures. A stage without results leaves its place as it is.

use std::{
    collections::BTreeMap,
    fmt::Write,
    fs,
    path::{Path, PathBuf},
};

use anyhow::Context;
use clap::ValueEnum;

use super::results::{Measured, Results, Stage};
use crate::figures::Goal;

#[derive(Clone, Debug, clap::Args)]
pub struct RenderArgs {
    /// The stored results
    #[arg(long, value_name = "FILE", default_value = "bench/results/latest.json")]
    results: PathBuf,
    /// The document; the parts between its markers are replaced
    #[arg(long, value_name = "FILE", default_value = "docs/benchmarks.md")]
    into: PathBuf,
}

pub fn render(args: &RenderArgs) -> anyhow::Result<()> {
    let document = rendered(&args.results, &args.into)?;
    fs::write(&args.into, document).with_context(|| args.into.display().to_string())
}

/// The document with the stored results.
fn rendered(results: &Path, document: &Path) -> anyhow::Result<String> {
    let results = Results::read(results)?;
    anyhow::ensure!(
        results.are_real(),
        "these results are of a debug build or of divided fleets: run `make bench`"
    );
    let document = fs::read_to_string(document).with_context(|| document.display().to_string())?;
    let document = replaced(&document, "machines", &machines(&results))?;
    results
        .stages
        .iter()
        .try_fold(document, |document, (stage, measured)| {
            replaced(&document, &name(*stage), &text(measured))
        })
}

fn replaced(document: &str, name: &str, text: &str) -> anyhow::Result<String> {
    let (begin, end) = (format!("<!-- {name} -->"), format!("<!-- /{name} -->"));
    let parts = document.split_once(&begin);
    let (head, rest) = parts.with_context(|| format!("no {begin}"))?;
    let (_, tail) = rest.split_once(&end).with_context(|| format!("no {end}"))?;
    Ok(format!("{head}{begin}\n{text}{end}{tail}"))
}

/// As on the command line.
pub fn name(stage: Stage) -> String {
    let value = stage.to_possible_value();
    value.map_or_else(String::new, |value| value.get_name().to_owned())
}

/// Each machine with its PostgreSQL, and the stages that were measured there.
fn machines(results: &Results) -> String {
    let mut stages_of = BTreeMap::<String, Vec<String>>::new();
    for (stage, measured) in &results.stages {
        let place = format!("{}; {}", measured.machine, measured.postgres);
        stages_of.entry(place).or_default().push(name(*stage));
    }
    let lines = stages_of.iter();
    let lines = lines.map(|(place, stages)| format!("- {}: {place}\n", stages.join(", ")));
    lines.collect()
}

/// The results of a stage.
pub fn text(measured: &Measured) -> String {
    let figures = &measured.figures;
    let mut out = String::new();
    for table in &figures.tables {
        let _ = writeln!(out, "{table}");
    }
    let _ = write!(out, "{}.", measured.at.strftime("%Y-%m-%d"));
    if !figures.remark.is_empty() {
        let _ = write!(out, " {}", figures.remark);
    }
    let goals: Vec<String> = figures.goals.iter().map(goal).collect();
    if !goals.is_empty() {
        let _ = write!(out, " Goals: {}.", goals.join("; "));
    }
    out + "\n"
}

fn goal(goal: &Goal) -> String {
    let missed = if goal.met() { "" } else { " **missed**" };
    format!("{goal}{missed}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn repository() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
    }

    #[test]
    fn the_document_shows_the_stored_results() -> anyhow::Result<()> {
        let results = repository().join("bench/results/latest.json");
        let path = repository().join("docs/benchmarks.md");
        let document = fs::read_to_string(&path)?;
        assert!(
            rendered(&results, &path)? == document,
            "docs/benchmarks.md does not show the stored results: run `svc-fleet render`"
        );
        for stage in Stage::value_variants() {
            replaced(&document, &name(*stage), "")?;
        }
        Ok(())
    }

    #[test]
    fn only_the_part_between_the_markers_is_replaced() {
        let document = "# Head\n<!-- rss -->\nold\n<!-- /rss -->\nmore words\n";
        let once = replaced(document, "rss", "new\n").unwrap();
        assert_eq!(once, document.replace("old", "new"));
        assert_eq!(replaced(&once, "rss", "new\n").unwrap(), once);
        assert!(replaced(document, "pace", "new\n").is_err());
    }
}
