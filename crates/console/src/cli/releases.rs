//! `svc-console releases`: the agent's releases that this console offers to hosts.

use std::{fs, path::PathBuf};

use super::output::print;
use crate::{
    config,
    releases::{ARCHS, FILES, SIGNATURE, import, path, sums_path, versions},
};

#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// Import the agent's files of a release, after comparing them with the SHA256SUMS beside them
    Import {
        /// Packages and binaries, or folders with them: `svc-agent_VERSION_ARCH.deb`, `svc-agent-VERSION-1.ARCH.rpm`,
        /// `svc-agent-VERSION-linux-ARCH`
        #[arg(required = true)]
        paths: Vec<PathBuf>,
        /// The version of a binary that is named `svc-agent` alone
        #[arg(long, value_name = "VERSION")]
        release: Option<String>,
    },
    /// List the releases, the newest first: /install.sh installs that one
    List,
}

pub fn run(command: Command) -> anyhow::Result<()> {
    let settings = config::releases()?;
    match command {
        Command::Import { paths, release } => {
            let folder = settings.folder;
            let done = import::import(&folder, &paths, release.as_deref(), &settings.keys)?;
            for file in done.files {
                print(&format!("{}\n", folder.join(file).display()));
            }
            for file in done.unchecked {
                eprintln!(
                    "svc-console: there is no SHA256SUMS beside {}: it was not checked",
                    file.display()
                );
            }
            Ok(())
        }
        Command::List => list(&settings.folder),
    }
}

fn list(folder: &std::path::Path) -> anyhow::Result<()> {
    for version in versions(folder)? {
        let signature = sums_path(folder, &version, SIGNATURE);
        let signed = signature.is_some_and(|file| file.is_file());
        for arch in ARCHS {
            let has = |file: &&str| {
                let found = path(folder, [&version, "linux", arch], file);
                found.is_some_and(|file| fs::metadata(file).is_ok_and(|found| found.is_file()))
            };
            let files: Vec<&str> = FILES.into_iter().filter(has).collect();
            if !files.is_empty() {
                let signed = if signed { "  signed" } else { "" };
                print(&format!(
                    "{version:24} {arch:8} {}{signed}\n",
                    files.join(" ")
                ));
            }
        }
    }
    Ok(())
}
