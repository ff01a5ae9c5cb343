//! `svc-agent jwt`: prints the agent's current JWT, for scripts that call third parties. Only
//! root and the agent's user can read the file that contains it.

use std::process::ExitCode;

use anyhow::{Context, bail};
use jiff::Timestamp;
use secrecy::ExposeSecret;

use super::output::print;
use crate::{
    config::{Flags, data_dir},
    state,
};

/// Exit code 1 without a JWT that is valid now.
pub(super) fn run(flags: &Flags) -> anyhow::Result<ExitCode> {
    let folder = data_dir(flags)?;
    let shown = folder.display();
    let state = state::read(&folder)
        .with_context(|| format!("{shown} (run this as the agent's user, or root)"))?;
    let Some(credential) = state.credential() else {
        bail!("this agent has no JWT: `svc-agent status` shows why");
    };
    if state
        .jwt_expires_at()
        .is_some_and(|end| end <= Timestamp::now())
    {
        bail!("the JWT has expired: the agent gets a new one as soon as it is connected");
    }
    print(credential.jwt.expose_secret())?;
    Ok(ExitCode::SUCCESS)
}
