//! Trust anchors: which agents have confirmed them, and who would be locked out. The command line changes them, this page does not:
//! an anchor decides whom all agents believe.

use askama::Template;
use axum::extract::State;
use svc_store::{AnchorRecord, DistrustingAgent, Page as Rows};

use crate::{
    session::User,
    shell::{Page, Shell, html},
    state::App,
};

/// The agents that are named for each anchor.
const NAMED: u32 = 100;

#[derive(Template)]
#[template(path = "trust.html")]
struct TrustPage {
    shell: Shell,
    anchors: Vec<(AnchorRecord, Option<Rows<DistrustingAgent>>)>,
}

pub async fn page(State(app): State<App>, user: User) -> Page {
    let mut anchors = Vec::new();
    for anchor in app.store.trust_anchors().await? {
        let is_used = anchor.retired_at.is_none() && anchor.locked_out > 0;
        let agents = match is_used {
            true => Some(app.store.trust_locked_out(&anchor.hash, NAMED).await?),
            false => None,
        };
        anchors.push((anchor, agents));
    }
    html(&TrustPage {
        shell: Shell::new(&app, user, "trust"),
        anchors,
    })
}
