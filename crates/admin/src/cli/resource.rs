//! Listing, showing and selecting tokens, agents and hosts.
//!
//! [`Resource`] describes one kind of record: its columns, its details and how to find it. The functions here do
//! the rest, so that the file of a noun holds only its columns and its verbs.

use std::{fmt::Display, process::ExitCode};

use anyhow::{Context, bail};
use serde::Serialize;
use svc_store::{Labels, Page, Store, StoreError};

use super::{
    database::open,
    output::{self, Column, Output},
    terminal,
};

/// How many candidates an ambiguous name lists.
const CANDIDATES: u32 = 10;

/// One kind of record that the command line lists, shows and selects.
pub trait Resource: Serialize + Sized + 'static {
    /// Its name on the command line.
    const NOUN: &'static str;
    const COLUMNS: &'static [Column<Self>];
    type Id: Copy + Display;
    type Detail: Serialize;

    fn id(&self) -> Self::Id;

    /// What tells it apart from other candidates of the same name.
    fn hint(&self) -> String;

    /// Whether `name`, in lower case, identifies exactly this record.
    fn is_exactly(&self, name: &str) -> bool {
        self.id().to_string() == name
    }

    /// The records that `name` may mean: by id, by a prefix of the id, or by another name.
    async fn find(store: &Store, name: &str, limit: u32) -> anyhow::Result<Page<Self>>;

    async fn load(store: &Store, id: Self::Id) -> Result<Option<Self::Detail>, StoreError>;

    /// The text that `show` prints.
    fn describe(detail: &Self::Detail) -> String;
}

/// How to print what may change: once, or again and again.
#[derive(Debug, clap::Args)]
pub struct ViewArgs {
    /// Refresh every 2 seconds, until Ctrl-C
    #[arg(long)]
    pub watch: bool,
    #[arg(long, value_enum, default_value_t)]
    pub output: Output,
}

#[derive(Debug, clap::Args)]
pub struct PageArgs {
    /// Show at most this many
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..))]
    limit: u32,
    #[command(flatten)]
    view: ViewArgs,
}

/// The filters of everything that belongs to a host.
#[derive(Debug, clap::Args)]
pub struct HostArgs {
    /// Only hosts with this label, key=value; several labels must all match
    #[arg(long, value_name = "KEY=VALUE")]
    pub label: Vec<Labels>,
    /// Only hosts with this name
    #[arg(long, value_name = "NAME")]
    pub hostname: Option<String>,
}

/// What a command prints as JSON that ends the agents of a record.
#[derive(Serialize)]
pub struct Ended<'a, R> {
    #[serde(flatten)]
    pub record: &'a R,
    pub agents_ended: i32,
}

/// Prints the records that `fetch` returns, or `empty` where there are none.
pub async fn list<R: Resource>(
    args: &PageArgs,
    empty: &str,
    fetch: impl AsyncFn(&Store, u32) -> Result<Page<R>, StoreError>,
) -> anyhow::Result<ExitCode> {
    let store = open().await?;
    terminal::show(args.view.watch, async || {
        let page = fetch(&store, args.limit).await?;
        render(args.view.output, &page, empty)
    })
    .await?;
    Ok(ExitCode::SUCCESS)
}

/// Prints the details of the record that `name` means.
pub async fn show<R: Resource>(name: &str, output: Output) -> anyhow::Result<ExitCode> {
    let store = open().await?;
    let id = select::<R>(&store, name).await?.id();
    let detail = load::<R>(&store, id).await?;
    output.print(&detail, || R::describe(&detail))?;
    Ok(ExitCode::SUCCESS)
}

/// The one record that `name` means. An ambiguous name is an error that lists the candidates; only an exact match
/// goes before names that merely begin with `name`.
pub async fn select<R: Resource>(store: &Store, name: &str) -> anyhow::Result<R> {
    let Page {
        mut rows,
        truncated,
    } = R::find(store, name, CANDIDATES).await?;
    let lower = name.to_ascii_lowercase();
    let exact = rows.iter().position(|row| row.is_exactly(&lower));
    if let Some(position) = exact.or((rows.len() == 1).then_some(0)) {
        return Ok(rows.swap_remove(position));
    }
    let noun = R::NOUN;
    if rows.is_empty() {
        bail!("no {noun} is called {name:?}: `svc-ingest {noun} list` shows all");
    }
    let candidate = |row: &R| format!("{} ({})", row.id(), row.hint());
    let candidates: Vec<String> = rows.iter().map(candidate).collect();
    let more = if truncated { ", and more" } else { "" };
    bail!(
        "{name:?} fits several {noun}s, choose one by its id: {}{more}",
        candidates.join(", ")
    )
}

/// The details of a record that was there a moment ago.
pub async fn load<R: Resource>(store: &Store, id: R::Id) -> anyhow::Result<R::Detail> {
    let found = R::load(store, id).await?;
    found.with_context(|| format!("the {} was deleted just now", R::NOUN))
}

pub fn table<R: Resource>(rows: &[R]) -> String {
    output::table(R::COLUMNS, rows)
}

fn render<R: Resource>(output: Output, page: &Page<R>, empty: &str) -> anyhow::Result<String> {
    let shown = page.rows.len();
    let notice = format!("only the first {shown} are shown: add a filter, or raise --limit");
    if output == Output::Json && page.truncated {
        eprintln!("svc-ingest: {notice}");
    }
    output.render(&page.rows, || match (shown, page.truncated) {
        (0, _) => empty.to_owned(),
        (_, true) => format!("{}\n\n{notice}", table(&page.rows)),
        (_, false) => table(&page.rows),
    })
}
