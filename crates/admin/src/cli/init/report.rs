//! What `init` did, for people and for programs, and the commands that come next.

use std::path::Path;

use serde::Serialize;

use super::{
    certificates,
    console::Saved,
    settings::Settings,
    step::{Done, Step},
};
use crate::cli::output::facts;

/// The next commands, each of which works as it is printed.
pub struct Next {
    /// How a command of the service begins.
    ingest: String,
    lines: Vec<String>,
    has_units: bool,
}

impl Next {
    pub fn new(env_file: &Path, settings: &Settings) -> Self {
        let ingest = command("svc-ingest", env_file, "/etc/svc/ingest.env");
        // Units read the settings from where the packages expect them.
        let has_units = ingest == "svc-ingest" && Path::new("/run/systemd/system").is_dir();
        let start = match has_units {
            true => "systemctl restart svc-ingest".into(),
            false => format!("start the service with {}", settings.path().display()),
        };
        let lines = vec![start, format!("{ingest} doctor")];
        Self {
            ingest,
            lines,
            has_units,
        }
    }

    pub fn console(&mut self, console: &Saved, has_people: bool) {
        let file = &console.env_file;
        let program = command("svc-console", file, "/etc/svc/console.env");
        self.lines
            .push(match self.has_units && program == "svc-console" {
                true => "systemctl restart svc-console".into(),
                false => format!("start the console with {}", file.display()),
            });
        let base = &console.base_url;
        let trust = console.ca.as_ref();
        let trust =
            trust.map(|ca| format!("let browsers trust {}, the CA of {base}", ca.display()));
        self.lines.extend(trust);
        // A name that exists cannot be added again, and the people can make links for one another.
        if !has_people {
            self.lines
                .push(format!("{program} user add admin --role admin"));
        }
    }
}

/// How a command begins that finds these settings.
fn command(program: &str, env_file: &Path, default: &str) -> String {
    match env_file == Path::new(default) {
        true => program.into(),
        false => format!("{program} --env-file '{}'", env_file.display()),
    }
}

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
    pub fn next(&mut self, next: Next, settings: &Settings) {
        let (ingest, mut next) = (next.ingest, next.lines);
        let ca = certificates::private_ca(settings);
        next.extend(
            ca.as_ref()
                .map(|ca| format!("copy {} to the host", ca.display())),
        );
        next.push("install the agent there, with /etc/svc/agent.toml:".into());
        next.extend(self.agent_settings(settings, ca.is_some()));
        next.push(format!("{ingest} agent list --status pending"));
        next.push(format!("{ingest} agent approve KEY"));
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
