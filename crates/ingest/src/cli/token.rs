//! `svc-ingest token`: makes, lists and ends enrolment tokens.
//!
//! A token's secret exists in the answer to its creation and nowhere else.

use std::{process::ExitCode, time::Duration};

use clap::Subcommand;
use serde::Serialize;
use svc_store::{NewToken, Store, TokenDetail, TokenRecord};

use super::{
    actor::{self, Actor},
    agent,
    database::open,
    labels::{self, Label},
    output::{self, Column, Fit, Output, facts, or_dash, print, print_json},
    select::{self, short, still_there},
    terminal,
    time::{in_full, when},
};
use crate::{config, enrol::EnrolmentToken};

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Make a token, and show it this once
    Create(CreateArgs),
    /// List tokens, the newest first
    List(ListArgs),
    /// Show one token, and the agents that came by it
    Show(ShowArgs),
    /// End a token: it admits nobody any more
    Revoke(RevokeArgs),
}

#[derive(Debug, clap::Args)]
pub struct CreateArgs {
    /// What people call it
    #[arg(long, default_value = "", hide_default_value = true, value_parser = actor::name)]
    label: String,
    /// How many agents it admits
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(i32).range(1..))]
    max_uses: i32,
    /// How long it admits: 12h, 7d, …, or never
    #[arg(long, value_name = "TIME", default_value = "7d", value_parser = lifetime)]
    expires_in: Lifetime,
    /// Its agents are active at once, without anybody's approval
    #[arg(long)]
    auto_approve: bool,
    /// With --auto-approve: may replace a machine's agent that has been offline for 10 minutes
    #[arg(long)]
    allow_reinstall: bool,
    /// Labels for its hosts: key=value, repeated or separated by commas
    #[arg(long, value_name = "KEY=VALUE", value_delimiter = ',')]
    labels: Vec<Label>,
    /// Who makes it, for the record
    #[arg(long, alias = "actor", value_name = "NAME", default_value_t = actor::os_user(), value_parser = actor::name)]
    created_by: String,
    #[arg(long, value_enum, default_value_t)]
    output: Output,
}

#[derive(Debug, clap::Args)]
pub struct ListArgs {
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..))]
    limit: u32,
    /// Look again every 2 seconds, until Ctrl-C
    #[arg(long)]
    watch: bool,
    #[arg(long, value_enum, default_value_t)]
    output: Output,
}

#[derive(Debug, clap::Args)]
pub struct ShowArgs {
    /// Its id or the beginning of it, its label, or the token itself
    token: String,
    #[arg(long, value_enum, default_value_t)]
    output: Output,
}

#[derive(Debug, clap::Args)]
pub struct RevokeArgs {
    /// Its id or the beginning of it, its label, or the token itself
    token: String,
    /// Revoke or reject the agents that came by it, too
    #[arg(long)]
    revoke_agents: bool,
    #[command(flatten)]
    by: Actor,
    #[arg(long, value_enum, default_value_t)]
    output: Output,
}

/// `None`: for ever.
#[derive(Clone, Copy, Debug)]
struct Lifetime(Option<Duration>);

/// What creation shows a program.
#[derive(Serialize)]
struct Created<'a> {
    token: &'a str,
    #[serde(flatten)]
    record: &'a TokenRecord,
}

/// What revocation shows a program.
#[derive(Serialize)]
struct Revoked<'a> {
    #[serde(flatten)]
    record: &'a TokenRecord,
    agents_ended: i32,
}

const COLUMNS: &[Column] = &[
    ("ID", Fit::Whole),
    ("LABEL", Fit::Wraps),
    ("STATE", Fit::Whole),
    ("USES", Fit::Whole),
    ("EXPIRES", Fit::Whole),
    ("APPROVAL", Fit::Whole),
    ("HOST LABELS", Fit::Wraps),
    ("BY", Fit::Wraps),
];

pub async fn run(command: Command) -> anyhow::Result<ExitCode> {
    match command {
        Command::Create(args) => create(args).await?,
        Command::List(args) => list(&args).await?,
        Command::Show(args) => show(&args).await?,
        Command::Revoke(args) => revoke(&args).await?,
    }
    Ok(ExitCode::SUCCESS)
}

async fn create(args: CreateArgs) -> anyhow::Result<()> {
    let output = args.output;
    let new = new_token(args)?;
    let store = open().await?;
    let token = EnrolmentToken::generate()
        .map_err(|_| anyhow::anyhow!("the operating system gave no random numbers"))?;
    let id = store.token_create(&token.hash().0, &new).await?;
    let record = still_there(store.token_show(id).await, "token")?.token;
    let (token, record) = (token.expose(), &record);
    match output {
        Output::Json => print_json(&Created { token, record })?,
        Output::Table => print(&created(token, record))?,
    }
    for warning in warnings(&new) {
        eprintln!("svc-ingest: warning: {warning}");
    }
    Ok(())
}

fn new_token(args: CreateArgs) -> anyhow::Result<NewToken> {
    Ok(NewToken {
        label: args.label,
        auto_approve: args.auto_approve,
        allow_reinstall: args.allow_reinstall,
        max_uses: args.max_uses,
        expires_in: args.expires_in.0,
        labels: labels::by_key(args.labels)?,
        created_by: args.created_by,
    })
}

fn created(token: &str, record: &TokenRecord) -> String {
    let agents = match record.max_uses {
        1 => "1 agent".to_owned(),
        several => format!("{several} agents"),
    };
    let until = record.expires_at.map_or_else(
        || "until it is revoked".to_owned(),
        |at| format!("until {}", in_full(at)),
    );
    let then = if record.auto_approve {
        "active at once, without approval"
    } else {
        "each waits for `svc-ingest agent approve`"
    };
    format!(
        "{token}\n\nThis is shown once, and only its hash is stored: copy it now.\nIt admits {agents} {until}; {then}.\nEnd it with `svc-ingest token revoke {}`.",
        short(record.id)
    )
}

fn warnings(new: &NewToken) -> Vec<&'static str> {
    let open_door = new.auto_approve && new.max_uses > 1 && new.expires_in.is_none();
    let idle = new.allow_reinstall && !new.auto_approve;
    [
        open_door.then_some(
            "whoever holds this token lets machines in unseen, and for ever: prefer --expires-in, or leave out --auto-approve",
        ),
        idle.then_some("--allow-reinstall has no effect without --auto-approve"),
    ]
    .into_iter()
    .flatten()
    .collect()
}

async fn list(args: &ListArgs) -> anyhow::Result<()> {
    let store = open().await?;
    let empty = "there is no token yet: `svc-ingest token create` makes one";
    terminal::show(args.watch, async || {
        let page = store.tokens_list(args.limit).await?;
        output::list(args.output, &page, table, empty)
    })
    .await
}

fn table(tokens: &[TokenRecord]) -> String {
    output::table(COLUMNS, tokens.iter().map(row))
}

fn row(token: &TokenRecord) -> Vec<String> {
    vec![
        short(token.id),
        or_dash(token.label.clone()),
        token.state.clone(),
        format!("{}/{}", token.uses, token.max_uses),
        token
            .expires_at
            .map_or_else(|| "never".into(), |at| when(Some(at))),
        approval(token).into(),
        or_dash(labels::shown(&token.labels)),
        token.created_by.clone(),
    ]
}

fn approval(token: &TokenRecord) -> &'static str {
    match (token.auto_approve, token.allow_reinstall) {
        (true, true) => "auto, reinstall",
        (true, false) => "auto",
        (false, _) => "by hand",
    }
}

async fn show(args: &ShowArgs) -> anyhow::Result<()> {
    let store = open().await?;
    let detail = find(&store, &args.token).await?;
    match args.output {
        Output::Json => print_json(&detail),
        Output::Table => print(&in_detail(&detail)),
    }
}

async fn find(store: &Store, name: &str) -> anyhow::Result<TokenDetail> {
    let id = select::token(store, name).await?;
    still_there(store.token_show(id).await, "token")
}

fn in_detail(TokenDetail { token, agents }: &TokenDetail) -> String {
    let mut rows = vec![
        ("id", token.id.to_string()),
        ("label", or_dash(token.label.clone())),
        ("state", token.state.clone()),
        ("uses", format!("{} of {}", token.uses, token.max_uses)),
        (
            "expires",
            token.expires_at.map_or_else(|| "never".into(), in_full),
        ),
        ("approval", approval(token).into()),
        ("host labels", or_dash(labels::shown(&token.labels))),
        (
            "created",
            format!("{} by {}", in_full(token.created_at), token.created_by),
        ),
        (
            "last used",
            token.last_used_at.map_or_else(|| "never".into(), in_full),
        ),
    ];
    if let Some(at) = token.revoked_at {
        let by = or_dash(token.revoked_by.clone());
        rows.push(("revoked", format!("{} by {by}", in_full(at))));
    }
    match agents.as_slice() {
        [] => facts(&rows),
        agents => format!("{}\n\n{}", facts(&rows), agent::table(agents)),
    }
}

async fn revoke(args: &RevokeArgs) -> anyhow::Result<()> {
    let store = open().await?;
    let id = select::token(&store, &args.token).await?;
    let agents_ended = store
        .token_revoke(id, &args.by.actor, args.revoke_agents)
        .await?;
    let record = &still_there(store.token_show(id).await, "token")?.token;
    match args.output {
        Output::Json => print_json(&Revoked {
            record,
            agents_ended,
        }),
        Output::Table if args.revoke_agents => print(&format!(
            "revoked token {id}, and ended {agents_ended} of its agents"
        )),
        Output::Table => print(&format!(
            "revoked token {id}; the agents that came by it stay (--revoke-agents ends them too)"
        )),
    }
}

fn lifetime(text: &str) -> Result<Lifetime, String> {
    if text == "never" {
        return Ok(Lifetime(None));
    }
    let (least, most) = (Duration::from_mins(1), Duration::from_hours(24 * 3660));
    let life = config::duration(text, least, most)
        .map_err(|reason| format!("{text} {reason}, or never"))?;
    Ok(Lifetime(Some(life)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lifetime_is_a_duration_or_never() {
        assert_eq!(lifetime("7d").unwrap().0, Some(Duration::from_hours(168)));
        assert_eq!(lifetime("90m").unwrap().0, Some(Duration::from_mins(90)));
        assert_eq!(lifetime("never").unwrap().0, None);
        for text in ["", "7", "-7d", "0s", "1y", "20000d", "forever"] {
            assert!(lifetime(text).is_err(), "{text}");
        }
    }
}
