//! `svc-ingest token`: creates, lists and revokes enrolment tokens.
//!
//! Only the answer to its creation contains a token's secret; the database stores a hash.

use std::{process::ExitCode, time::Duration};

use anyhow::Context;
use clap::Subcommand;
use jiff::Timestamp;
use serde::Serialize;
use svc_common::{enrolment_token::EnrolmentToken, settings::parse};
use svc_store::{Labels, NewToken, Page, Store, StoreError, TokenDetail, TokenId, TokenRecord};

use super::{
    actor::{self, Attribution},
    database::open,
    labels,
    output::{Column, Fit, Output, facts, or_dash, short},
    resource::{self, Ended, Resource},
    time::{in_full, when},
};

/// How long a token is valid, unless --expires-in says otherwise.
pub const DEFAULT_LIFETIME: Duration = Duration::from_hours(7 * 24);

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Create a token, and show it this once
    Create(CreateArgs),
    /// List tokens, the newest first
    List(resource::PageArgs),
    /// Show one token, and the agents that enrolled with it
    Show {
        /// Its id or a prefix of it, its label, or the token itself
        token: String,
        #[arg(long, value_enum, default_value_t)]
        output: Output,
    },
    /// Revoke a token: it admits no more agents
    Revoke(RevokeArgs),
}

#[derive(Debug, clap::Args)]
pub struct CreateArgs {
    /// A name for people
    #[arg(long, default_value = "", hide_default_value = true, value_parser = actor::name)]
    label: String,
    /// How many agents it admits
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(i32).range(1..))]
    max_uses: i32,
    /// How long it is valid: 12h, 7d, …, or never
    #[arg(long, value_name = "TIME", default_value = "7d", value_parser = lifetime)]
    expires_in: Lifetime,
    /// Its agents are active at once, without an approval
    #[arg(long)]
    auto_approve: bool,
    /// With --auto-approve: may replace a machine's agent that has been offline for 10 minutes
    #[arg(long)]
    allow_reinstall: bool,
    /// Labels for its hosts: key=value, repeated or separated by commas
    #[arg(long, value_name = "KEY=VALUE")]
    labels: Vec<Labels>,
    /// Who creates it, for the record
    #[arg(long, alias = "actor", value_name = "NAME", default_value_t = actor::os_user(), value_parser = actor::name)]
    created_by: String,
    #[arg(long, value_enum, default_value_t)]
    output: Output,
}

#[derive(Debug, clap::Args)]
pub struct RevokeArgs {
    /// Its id or a prefix of it, its label, or the token itself
    token: String,
    /// Revoke or reject the agents that enrolled with it, too
    #[arg(long)]
    revoke_agents: bool,
    #[command(flatten)]
    attribution: Attribution,
    #[arg(long, value_enum, default_value_t)]
    output: Output,
}

/// `None` means without an end.
#[derive(Clone, Copy, Debug)]
struct Lifetime(Option<Duration>);

/// What `create` prints as JSON.
#[derive(Serialize)]
struct Created<'a> {
    token: &'a str,
    #[serde(flatten)]
    record: &'a TokenRecord,
}

pub async fn run(command: Command) -> anyhow::Result<ExitCode> {
    match command {
        Command::Create(args) => create(args).await,
        Command::List(args) => list(&args).await,
        Command::Show { token, output } => resource::show::<TokenRecord>(&token, output).await,
        Command::Revoke(args) => revoke(&args).await,
    }
}

async fn list(args: &resource::PageArgs) -> anyhow::Result<ExitCode> {
    let empty = "there is no token yet: `svc-ingest token create` makes one";
    resource::list(args, empty, async |store, limit| {
        store.tokens_list(limit).await
    })
    .await
}

async fn create(args: CreateArgs) -> anyhow::Result<ExitCode> {
    let output = args.output;
    let new = new_token(args)?;
    let store = open().await?;
    let (token, id) = add(&store, &new).await?;
    let record = &resource::load::<TokenRecord>(&store, id).await?.token;
    let token = token.expose();
    output.print(&Created { token, record }, || created(token, record))?;
    for warning in warnings(&new) {
        eprintln!("svc-ingest: warning: {warning}");
    }
    Ok(ExitCode::SUCCESS)
}

/// Generates a token and stores its hash.
pub async fn add(store: &Store, new: &NewToken) -> anyhow::Result<(EnrolmentToken, TokenId)> {
    let token = EnrolmentToken::generate()
        .map_err(|_| anyhow::anyhow!("the operating system gave no random numbers"))?;
    let id = store.token_create(&token.hash().0, new).await?;
    Ok((token, id))
}

fn new_token(args: CreateArgs) -> anyhow::Result<NewToken> {
    Ok(NewToken {
        label: args.label,
        auto_approve: args.auto_approve,
        allow_reinstall: args.allow_reinstall,
        max_uses: args.max_uses,
        expires_in: args.expires_in.0,
        labels: labels::joined(args.labels)?,
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
        "{token}\n\nThis is shown once, and only its hash is stored: copy it now.\nIt admits {agents} {until}; {then}.\nRevoke it with `svc-ingest token revoke {}`.",
        short(record.id)
    )
}

fn warnings(new: &NewToken) -> Vec<&'static str> {
    let open_door = new.auto_approve && new.max_uses > 1 && new.expires_in.is_none();
    let idle = new.allow_reinstall && !new.auto_approve;
    [
        open_door.then_some(
            "anyone with this token can enrol machines without approval, without an end: set --expires-in, or leave out --auto-approve",
        ),
        idle.then_some("--allow-reinstall has no effect without --auto-approve"),
    ]
    .into_iter()
    .flatten()
    .collect()
}

impl Resource for TokenRecord {
    const NOUN: &'static str = "token";
    const COLUMNS: &'static [Column<Self>] = &[
        ("ID", Fit::Whole, |token| short(token.id)),
        ("LABEL", Fit::Wraps, |token| or_dash(token.label.clone())),
        ("STATE", Fit::Whole, |token| token.state.clone()),
        ("USES", Fit::Whole, |token| {
            format!("{}/{}", token.uses, token.max_uses)
        }),
        ("EXPIRES", Fit::Whole, |token| {
            or_never(token.expires_at, |at| when(Some(at)))
        }),
        ("APPROVAL", Fit::Whole, |token| approval(token).into()),
        ("HOST LABELS", Fit::Wraps, |token| {
            or_dash(token.labels.to_string())
        }),
        ("BY", Fit::Wraps, |token| token.created_by.clone()),
    ];
    type Id = TokenId;
    type Detail = TokenDetail;

    fn id(&self) -> TokenId {
        self.id
    }

    fn hint(&self) -> String {
        format!("{}, {}", self.label, self.state)
    }

    /// The token itself selects it, too: it is all that is known of a leaked token.
    async fn find(store: &Store, name: &str, limit: u32) -> anyhow::Result<Page<Self>> {
        let Ok(secret) = EnrolmentToken::parse(name) else {
            return Ok(store.tokens_find(name, limit).await?);
        };
        let id = store.token_by_hash(&secret.hash().0).await?;
        let id = id.context("there is no such token here: is this the right database?")?;
        let detail = resource::load::<Self>(store, id).await?;
        Ok(Page {
            rows: vec![detail.token],
            truncated: false,
        })
    }

    async fn load(store: &Store, id: TokenId) -> Result<Option<TokenDetail>, StoreError> {
        store.token_show(id).await
    }

    fn describe(TokenDetail { token, agents }: &TokenDetail) -> String {
        let facts = facts(&detail_rows(token));
        match agents.as_slice() {
            [] => facts,
            agents => format!("{facts}\n\n{}", resource::table(agents)),
        }
    }
}

fn or_never(at: Option<Timestamp>, text: fn(Timestamp) -> String) -> String {
    at.map_or_else(|| "never".into(), text)
}

fn approval(token: &TokenRecord) -> &'static str {
    match (token.auto_approve, token.allow_reinstall) {
        (true, true) => "auto, reinstall",
        (true, false) => "auto",
        (false, _) => "by hand",
    }
}

fn detail_rows(token: &TokenRecord) -> Vec<(&'static str, String)> {
    let created_at = in_full(token.created_at);
    let mut rows = vec![
        ("id", token.id.to_string()),
        ("label", or_dash(token.label.clone())),
        ("state", token.state.clone()),
        ("uses", format!("{} of {}", token.uses, token.max_uses)),
        ("expires", or_never(token.expires_at, in_full)),
        ("approval", approval(token).into()),
        ("host labels", or_dash(token.labels.to_string())),
        ("created", format!("{created_at} by {}", token.created_by)),
        ("last used", or_never(token.last_used_at, in_full)),
    ];
    if let Some(at) = token.revoked_at {
        let by = or_dash(token.revoked_by.clone());
        rows.push(("revoked", format!("{} by {by}", in_full(at))));
    }
    rows
}

async fn revoke(args: &RevokeArgs) -> anyhow::Result<ExitCode> {
    let store = open().await?;
    let token = resource::select::<TokenRecord>(&store, &args.token).await?;
    let id = token.id;
    let (why, with_agents) = (&args.attribution, args.revoke_agents);
    let (actor, reason) = (&why.by.actor, why.reason.as_deref());
    let revoked = store.token_revoke(id, actor, with_agents, reason);
    let agents_ended = revoked.await?;
    let record = &resource::load::<TokenRecord>(&store, id).await?.token;
    let revoked = Ended {
        record,
        agents_ended,
    };
    args.output.print(&revoked, || match with_agents {
        true => format!("revoked token {id}, and ended {agents_ended} of its agents"),
        false => format!("revoked token {id}; its agents stay (--revoke-agents ends them too)"),
    })?;
    Ok(ExitCode::SUCCESS)
}

fn lifetime(text: &str) -> Result<Lifetime, String> {
    if text == "never" {
        return Ok(Lifetime(None));
    }
    let (least, most) = (Duration::from_mins(1), Duration::from_hours(24 * 3660));
    let life = parse::duration(text, least, most)
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
