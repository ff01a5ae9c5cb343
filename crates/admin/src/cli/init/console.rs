//! The web console's part of an installation: a role of its own, and its settings.

use std::{
    cell::RefCell,
    fs,
    path::{Path, PathBuf},
};

use anyhow::Context;
use url::Url;

use super::{
    args::Args,
    certificates,
    connection_string::{login_of, new_password, service_url},
    files,
    peer::{Login, Request},
    settings::{self, Settings},
    step::Step,
};

const URL: &str = "DATABASE_URL";

#[derive(Debug)]
pub struct Plan {
    base_url: Url,
    settings: RefCell<Settings>,
}

impl Plan {
    /// `None` if no console is asked for.
    pub fn new(args: &Args, env_file: &Path) -> anyhow::Result<Option<Self>> {
        let Some(base_url) = args.console_url.clone() else {
            return Ok(None);
        };
        let file = match &args.console_folder {
            Some(folder) => folder.join("console.env"),
            None => env_file.with_file_name("console.env"),
        };
        let settings = Settings::open(&file, settings::CONSOLE)?;
        Ok(Some(Self {
            base_url,
            settings: RefCell::new(settings),
        }))
    }

    /// Whether the console's settings have a role.
    pub fn has_role(&self) -> bool {
        self.settings.borrow().get(URL).is_some()
    }

    /// The role in the console's settings, or a new one beside the service's.
    pub fn login(&self, owner: &str) -> anyhow::Result<Login> {
        match self.settings.borrow().get(URL) {
            Some(known) => login_of(&Url::parse(known)?),
            None => Ok(Login {
                role: format!("{owner}_web"),
                password: new_password(),
                new: true,
            }),
        }
    }

    /// Writes the connection string before the role exists.
    pub fn keep_password(&self, request: &Request) -> anyhow::Result<()> {
        let Some(web) = &request.web else {
            return Ok(());
        };
        let url = service_url(
            &request.admin_url,
            &web.role,
            &web.password,
            &request.database,
        )?;
        self.settings.borrow_mut().set(URL, &url)
    }

    /// Completes both settings: the service grants the role its rights and names the console to agents.
    pub fn save(self, service: &mut Settings) -> anyhow::Result<Step> {
        let mut settings = self.settings.into_inner();
        let base = self.base_url.as_str().trim_end_matches('/');
        let role = login_of(&Url::parse(settings.get(URL).unwrap_or_default())?)?.role;
        service.set("INGEST_WEB_ROLE", &role)?;
        service.set("INGEST_AGENT_DOWNLOAD_BASE_URL", base)?;
        settings.set("CONSOLE_BASE_URL", base)?;
        if let Some(name) = certificates::first_name(service) {
            let port = service.get("INGEST_GRPC_PORT").unwrap_or("9443");
            settings.set("CONSOLE_INGEST_ADDRESS", &format!("{name}:{port}"))?;
        }
        if let Some(ca) = certificates::private_ca(service) {
            let ca = beside(&settings, ca)?;
            settings.set("CONSOLE_INGEST_CA", &ca.to_string_lossy())?;
        }
        Ok(settings.step().about("console"))
    }
}

/// The CA's certificate in the folder of the console, which may not read the service's.
fn beside(settings: &Settings, ca: PathBuf) -> anyhow::Result<PathBuf> {
    let copy = settings.folder().join("ca.pem");
    if copy != ca {
        let text = fs::read_to_string(&ca).with_context(|| ca.display().to_string())?;
        files::replace(&copy, &text, 0o644, None)?;
    }
    Ok(copy)
}
