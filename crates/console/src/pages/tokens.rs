//! Enrolment tokens: create (the secret is shown once), list, revoke.

use std::time::Duration;

use askama::Template;
use axum::extract::State;
use svc_common::enrolment_token::EnrolmentToken;
use svc_store::{AgentRecord, TokenId, TokenRecord, TokenRequest};

use crate::{
    config::Install,
    error::AppError,
    form::Fields,
    id::{Id, Subject},
    releases,
    session::{Admin, User},
    shell::{Changed, Page, Shell, go_to, html},
    state::App,
};

const SHOWN: u32 = 500;
const DAY: Duration = Duration::from_hours(24);

#[derive(Template)]
#[template(path = "tokens.html")]
struct TokensPage {
    shell: Shell,
    tokens: Vec<TokenRecord>,
    truncated: bool,
}

#[derive(Template)]
#[template(path = "token_new.html")]
struct NewTokenPage<'a> {
    shell: Shell,
    label: &'a str,
    secret: &'a str,
    base_url: &'a str,
    install: &'a Install,
    /// Whether there is a release that /install.sh can install.
    has_release: bool,
    id: TokenId,
}

impl NewTokenPage<'_> {
    /// The command that downloads the install script. A private CA is a part of it, so that nothing is trusted on first use.
    fn download(&self) -> String {
        let script = format!("{}/install.sh -o install.sh", self.base_url);
        match &self.install.console_ca {
            None => format!("curl -fsSL {script}"),
            Some(ca) => format!(
                "cat >console_ca.pem <<'CERTIFICATE'\n{}\nCERTIFICATE\ncurl -fsSL --cacert console_ca.pem {script}",
                ca.trim()
            ),
        }
    }
}

#[derive(Template)]
#[template(path = "token.html")]
struct TokenPage {
    shell: Shell,
    token: TokenRecord,
    agents: Vec<AgentRecord>,
    /// How many a revocation would change.
    current: i64,
    shown: i64,
}

pub async fn page(State(app): State<App>, user: User) -> Page {
    let page = app.store.tokens_list(SHOWN).await?;
    html(&TokensPage {
        shell: Shell::new(&app, user, "tokens"),
        truncated: page.truncated,
        tokens: page.rows,
    })
}

/// The answer to this request is the only place that shows the secret.
pub async fn create(State(app): State<App>, Admin(user): Admin, fields: Fields) -> Page {
    let request = request(&fields)?;
    let token = EnrolmentToken::generate()?;
    let id = app
        .store
        .console_token_add(&token.hash().0, &request, &user.name)
        .await?;
    html(&NewTokenPage {
        shell: Shell::new(&app, user, "tokens"),
        label: &request.label,
        secret: token.expose(),
        base_url: &app.web.origin(),
        install: &app.install,
        has_release: releases::newest(&app.install.releases.folder)
            .await
            .is_some(),
        id,
    })
}

fn request(fields: &Fields) -> Result<TokenRequest, AppError> {
    let wrong = AppError::bad_request;
    let label = fields.text("label", 255, "The name")?;
    let max_uses = fields.get("max_uses").parse().ok();
    let max_uses = max_uses.filter(|uses| (1..=1_000_000).contains(uses));
    let days: Option<u32> = match fields.get("days") {
        "" | "never" => None,
        days => Some(
            days.parse()
                .map_err(|_| wrong("The expiry is a number of days."))?,
        ),
    };
    if days.is_some_and(|days| !(1..=3650).contains(&days)) {
        return Err(wrong("A token expires after 1 to 3650 days, or never."));
    }
    let change = fields.labels()?;
    if !change.removed.is_empty() {
        return Err(wrong("A new token has no labels to remove."));
    }
    Ok(TokenRequest {
        label: label.ok_or_else(|| wrong("Give the token a name."))?,
        max_uses: max_uses.ok_or_else(|| wrong("A token has 1 to 1,000,000 uses."))?,
        expires_in: days.map(|days| DAY * days),
        labels: change.added,
    })
}

pub async fn show(State(app): State<App>, user: User, Id(id): Id<TokenId>) -> Page {
    let found = app.store.token_show(id).await?;
    let found = found.ok_or(TokenId::MISSING)?;
    html(&TokenPage {
        shell: Shell::new(&app, user, "tokens"),
        token: found.token,
        current: app.store.token_current_agents(id).await?,
        shown: i64::try_from(found.agents.len()).unwrap_or(i64::MAX),
        agents: found.agents,
    })
}

pub async fn revoke(
    State(app): State<App>,
    Admin(user): Admin,
    Id(id): Id<TokenId>,
    fields: Fields,
) -> Changed {
    let found = app.store.token_show(id).await?;
    let found = found.ok_or(TokenId::MISSING)?;
    let (with_agents, reason) = (fields.get("agents") == "yes", fields.required_reason()?);
    app.store
        .token_revoke(found.token.id, &user.name, with_agents, Some(&reason))
        .await?;
    go_to(&format!("/tokens/{id}"))
}
