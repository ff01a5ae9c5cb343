//! Rules of settings of agents: what is set for whom, and the change of a rule after a preview.

use askama::Template;
use axum::extract::State;
use jiff::Timestamp;
use svc_store::{AgentSettings, Apply, NewRule, RuleChange, SettingsCost, SettingsRule};

use crate::{
    error::AppError,
    form::Fields,
    session::{Operator, User},
    shell::{Changed, Page, Shell, go_to, html},
    state::App,
};

/// What a rule is made of. The preview passes it on as it was written.
const FIELDS: [&str; 16] = [
    "action",
    "rule",
    "labels",
    "all",
    "priority",
    "share",
    "interval",
    "left_out",
    "ignored_mounts",
    "ignored_file_systems",
    "ignored_interfaces",
    "log",
    "log_for",
    "spool",
    "update",
    "update_hours",
];
/// Fields that are plain inputs: name, label, and an example.
const INPUTS: [(&str, &str, &str); 8] = [
    ("interval", "Interval", "30s"),
    ("left_out", "Vitals to leave out", "pressure, block_devices"),
    ("ignored_mounts", "Mount points to ignore", "/mnt/*"),
    ("ignored_file_systems", "File systems to ignore", "squashfs"),
    ("ignored_interfaces", "Interfaces to ignore", "veth*"),
    ("log_for", "Log level for", "2h"),
    ("spool", "Size of the spool", "64MiB"),
    (
        "update_hours",
        "Hours of updates (UTC)",
        "mon-fri 08:00-16:00",
    ),
];
const SWITCH: [&str; 2] = ["on", "off"];
const LEVELS: [&str; 5] = ["error", "warn", "info", "debug", "trace"];

#[derive(Template)]
#[template(path = "settings.html")]
struct SettingsPage {
    shell: Shell,
    rules: Vec<SettingsRule>,
    fields: Fields,
    /// The rule that the form shows, if it is one that exists.
    edited: Option<SettingsRule>,
    preview: Option<SettingsCost>,
    now: Timestamp,
}

impl SettingsPage {
    /// What the form shows: what was written, or what the rule has.
    fn shown(&self, name: &str) -> String {
        let written = self.fields.get(name);
        match &self.edited {
            Some(rule) if written.is_empty() && self.preview.is_none() => match name {
                "priority" => rule.priority.to_string(),
                "share" => rule.share.to_string(),
                "labels" => rule.selector.to_string(),
                "all" if rule.selector.is_empty() => "yes".into(),
                name => rule.patch.written(name, self.now),
            },
            _ => written.to_owned(),
        }
    }
}

pub async fn page(State(app): State<App>, user: User, fields: Fields) -> Page {
    let rules = app.store.settings_rules().await?;
    let preview = match user.may_operate() && !fields.get("action").is_empty() {
        true => {
            let change = wanted(&fields)?;
            let cost = app
                .store
                .settings_change(&change, Apply::Preview, &user.name, "");
            Some(cost.await?)
        }
        false => None,
    };
    let rule: Option<i64> = fields.get("rule").parse().ok();
    html(&SettingsPage {
        edited: rules.iter().find(|one| Some(one.id) == rule).cloned(),
        shell: Shell::new(&app, user, "settings"),
        rules,
        fields,
        preview,
        now: Timestamp::now(),
    })
}

pub async fn change(State(app): State<App>, Operator(user): Operator, fields: Fields) -> Changed {
    let (change, reason) = (wanted(&fields)?, fields.required_reason()?);
    let apply = match fields.get("force") {
        "yes" => Apply::Forced,
        _ => Apply::IfRoom,
    };
    let store = &app.store;
    let cost = store
        .settings_change(&change, apply, &user.name, &reason)
        .await?;
    match cost.applied {
        true => go_to("/settings"),
        false => Err(AppError::BadRequest(format!(
            "Nothing was changed, because the instances cannot take it: {cost}."
        ))),
    }
}

/// Whom a rule reaches is never left to a default.
fn wanted(fields: &Fields) -> Result<RuleChange, AppError> {
    let number = |name: &str, usual: i32| match fields.get(name) {
        "" => Ok(usual),
        text => text
            .parse()
            .map_err(|_| AppError::bad_request("The priority and the share are numbers.")),
    };
    let rule = fields.get("rule").parse();
    let rule = rule.map_err(|_| AppError::bad_request("Choose a rule."));
    match fields.get("action") {
        "add" | "change" => {}
        "remove" => return Ok(RuleChange::Remove(rule?)),
        _ => return Err(AppError::bad_request("Choose what to do.")),
    }
    let labels = fields.labels()?;
    let all = fields.get("all") == "yes";
    if !labels.removed.is_empty() || labels.added.is_empty() != all {
        return Err(AppError::bad_request(
            "Name the labels of the hosts, or choose all hosts: one of the two.",
        ));
    }
    let patch = AgentSettings::read(|name| fields.get(name), Timestamp::now());
    let new = NewRule {
        priority: number("priority", 100)?,
        selector: labels.added,
        patch: patch
            .map_err(|problem| AppError::BadRequest(format!("This is not accepted: {problem}.")))?,
        share: number("share", 100)?,
    };
    Ok(match fields.get("action") {
        "add" => RuleChange::Add(new),
        _ => RuleChange::Change(rule?, new),
    })
}
