//! `svc-manual FOLDER`: writes the man pages and shell completions of all programs, for the packages.
//!
//! It is a crate of its own so that no program carries the generators.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::Context;
use clap::Command;
use clap_complete::{Shell, generate_to};

fn main() -> anyhow::Result<()> {
    let folder = std::env::args_os().nth(1).map(PathBuf::from);
    write(&folder.context("usage: svc-manual FOLDER")?)
}

fn write(folder: &Path) -> anyhow::Result<()> {
    for command in [
        svc_admin::cli::command(),
        svc_agent::cli::command(),
        svc_console::cli::command(),
    ] {
        let program = folder.join(command.get_name());
        fs::create_dir_all(&program)?;
        for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
            let name = command.get_name().to_owned();
            generate_to(shell, &mut command.clone(), name, &program)?;
        }
        clap_mangen::generate_to(without_hidden(command), &program)?;
    }
    Ok(())
}

/// The generator would make pages of hidden commands, too.
fn without_hidden(command: Command) -> Command {
    let shown = command.get_subcommands().filter(|one| !one.is_hide_set());
    let shown: Vec<Command> = shown.cloned().map(without_hidden).collect();
    let mut bare = Command::new(command.get_name().to_owned());
    bare = bare
        .args(command.get_arguments().cloned())
        .subcommands(shown);
    if let Some(text) = command.get_about() {
        bare = bare.about(text.clone());
    }
    if let Some(text) = command.get_long_about() {
        bare = bare.long_about(text.clone());
    }
    if let Some(text) = command.get_after_help() {
        bare = bare.after_help(text.clone());
    }
    if let Some(version) = command.get_version() {
        bare = bare.version(version.to_owned());
    }
    bare.disable_help_subcommand(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_has_a_page_and_every_program_its_completions() {
        let folder = tempfile::tempdir().unwrap();
        write(folder.path()).unwrap();
        for name in [
            "svc-ingest/svc-ingest.1",
            "svc-ingest/svc-ingest-init.1",
            "svc-ingest/svc-ingest-token-create.1",
            "svc-ingest/svc-ingest.bash",
            "svc-ingest/_svc-ingest",
            "svc-agent/svc-agent.1",
            "svc-agent/svc-agent.fish",
            "svc-console/svc-console-user.1",
        ] {
            let text = fs::read_to_string(folder.path().join(name)).unwrap();
            assert!(text.len() > 200, "{name} is complete");
        }
        let page = fs::read_to_string(folder.path().join("svc-ingest/svc-ingest.1")).unwrap();
        assert!(
            !page.contains("init\\-database"),
            "hidden commands stay hidden"
        );
        assert!(
            !folder
                .path()
                .join("svc-ingest/svc-ingest-init-database.1")
                .exists()
        );
    }
}
