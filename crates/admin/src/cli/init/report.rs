//! What `init` did, for people and for programs, and the commands that come next.

use serde::Serialize;

use super::{
    args::Args,
    certificates,
    settings::Settings,
    step::{Done, Step},
};
use crate::cli::output::facts;

#[derive(Debug, Default, Serialize)]
pub struct Report {
    steps: Vec<Step>,
    warnings: Vec<String>,
    /// Shown here and nowhere else.
    #[serde(skip_serializing_if = "Option::is_none")]
    token: Option<String>,
    next: Vec<String>,
}

impl Report {
    pub fn add(&mut self, step: Step) {
        self.steps.push(step);
    }

    pub fn extend(&mut self, steps: Vec<Step>) {
        self.steps.extend(steps);
    }

    pub fn warn(&mut self, warning: Option<String>) {
        self.warnings.extend(warning);
    }

    pub fn token(&mut self, secret: &str) {
        self.token = Some(secret.to_owned());
    }

    /// What puts the installation into service and admits the first host.
    pub fn next(&mut self, args: &Args, settings: &Settings) {
        let mut next = vec!["systemctl restart svc-ingest", "svc-ingest doctor"];
        if args.console_url.is_some() {
            next.extend([
                "systemctl restart svc-console",
                "svc-console user link NAME",
            ]);
        }
        let mut next: Vec<String> = next.into_iter().map(Into::into).collect();
        let ca = certificates::private_ca(settings);
        next.extend(
            ca.as_ref()
                .map(|ca| format!("copy {} to the host", ca.display())),
        );
        next.push("install the agent there, with /etc/svc/agent.toml:".into());
        next.extend(self.agent_settings(settings, ca.is_some()));
        next.push("svc-ingest agent list --status pending".into());
        next.push("svc-ingest agent approve KEY".into());
        self.next = next;
    }

    fn agent_settings(&self, settings: &Settings, pinned: bool) -> Vec<String> {
        let host = certificates::first_name(settings).unwrap_or_else(|| "HOST".into());
        let port = settings.get("INGEST_GRPC_PORT").unwrap_or("9443");
        let token = self.token.as_deref().unwrap_or("svc_enr_…");
        let mut lines = vec![format!("    ingest_address = \"{host}:{port}\"")];
        if pinned {
            lines.push("    ca_cert_file = \"/etc/svc/ca.pem\"".into());
        }
        lines.push(format!("    enrolment_token = \"{token}\""));
        lines
    }

    pub fn text(&self) -> String {
        let row = |step: &Step| {
            let done = match step.done {
                Done::Made => "made",
                Done::Kept => "kept",
            };
            (done, format!("{:<12}  {}", step.subject, step.detail))
        };
        let rows: Vec<_> = self.steps.iter().map(row).collect();
        let mut parts = vec![facts(&rows)];
        parts.extend(
            self.warnings
                .iter()
                .map(|warning| format!("warning: {warning}")),
        );
        if let Some(token) = &self.token {
            parts.push(format!(
                "The first token admits one agent within 7 days. It is shown once:\n  {token}"
            ));
        }
        let next: Vec<String> = self.next.iter().map(|line| format!("  {line}")).collect();
        parts.push(format!("Next:\n{}", next.join("\n")));
        parts.join("\n\n")
    }
}
