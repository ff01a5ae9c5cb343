//! `svc-ingest settings`: rules that set how agents behave, by the labels of their hosts.

mod view;

use std::process::ExitCode;

use anyhow::{Context, bail};
use clap::{ArgGroup, Subcommand};
use jiff::Timestamp;
use svc_store::{AgentSettings, Apply, Labels, NewRule, RuleChange, SettingsRule, Store};

use super::{
    Usage,
    actor::{Actor, name},
    database::open,
    labels,
    output::{Output, OutputArgs},
};

/// A rule without `--priority` stands between those that are meant to be weaker and stronger.
const USUAL_PRIORITY: i32 = 100;

#[derive(Debug, Subcommand)]
pub enum Command {
    /// List the rules in their order: where two set the same field, the later one decides
    List(OutputArgs),
    /// Add a rule
    Add(Box<AddArgs>),
    /// Change a rule: what is not given stays
    Change(Box<ChangeArgs>),
    /// Remove a rule: its agents go back to what the others set
    Remove {
        /// The number of the rule
        rule: i64,
        #[command(flatten)]
        how: How,
    },
    /// Show what a host's agent is to run, which rule set what, and what the agent says
    Show {
        /// The host: its id, a prefix of it (4 characters or more), or its name
        host: String,
        #[arg(long, value_enum, default_value_t)]
        output: Output,
    },
    /// Show what a new rule would touch and cost, and add nothing
    Preview(Box<AddArgs>),
}

/// Whom a rule reaches is never left to a default.
#[derive(Debug, clap::Args)]
#[command(group = ArgGroup::new("hosts").required(true).args(["selector", "all"]))]
pub struct AddArgs {
    #[command(flatten)]
    rule: RuleArgs,
    #[command(flatten)]
    how: How,
}

#[derive(Debug, clap::Args)]
#[command(group = ArgGroup::new("hosts").args(["selector", "all"]))]
pub struct ChangeArgs {
    /// The number of the rule
    number: i64,
    #[command(flatten)]
    rule: RuleArgs,
    /// Leave this field to other rules: interval, left_out, ignored_mounts, …; may be repeated
    #[arg(long, value_name = "FIELD")]
    clear: Vec<String>,
    #[command(flatten)]
    how: How,
}

#[derive(Debug, clap::Args)]
struct RuleArgs {
    /// Hosts with this label, key=value; several labels must all match
    #[arg(long, value_name = "KEY=VALUE")]
    selector: Vec<Labels>,
    /// All hosts
    #[arg(long)]
    all: bool,
    /// Where two rules set the same field, the higher one decides: 0 to 1000 [default: 100]
    #[arg(long, value_name = "NUMBER")]
    priority: Option<i32>,
    /// The percentage of these hosts for which it is in force; a larger one has all hosts of a smaller one [default: 100]
    #[arg(long, value_name = "PERCENT")]
    share: Option<i32>,
    /// How often agents take and report a sample: 5s to 1h
    #[arg(
        long,
        value_name = "DURATION",
        default_value = "",
        hide_default_value = true
    )]
    interval: String,
    /// Leave this out of samples: disks, interfaces, block_devices, pressure or cpu_steal_ms; may be repeated, `none` leaves out nothing
    #[arg(long, value_name = "FIELD")]
    leave_out: Vec<String>,
    /// Leave these mount points out: /mnt/*; may be repeated, `none` ignores none
    #[arg(long, value_name = "PATTERN")]
    ignore_mount: Vec<String>,
    /// Leave file systems of this type out; may be repeated, `none` ignores none
    #[arg(long, value_name = "PATTERN")]
    ignore_file_system: Vec<String>,
    /// Leave these interfaces out: veth*; may be repeated, `none` ignores none
    #[arg(long, value_name = "PATTERN")]
    ignore_interface: Vec<String>,
    /// error, warn, info, debug or trace
    #[arg(
        long,
        value_name = "LEVEL",
        default_value = "",
        hide_default_value = true
    )]
    log: String,
    /// For how long the log level is valid from now on: 2h
    #[arg(
        long,
        value_name = "DURATION",
        default_value = "",
        hide_default_value = true
    )]
    log_until: String,
    /// The most disk space for samples that are not acknowledged yet: 64MiB
    #[arg(
        long,
        value_name = "SIZE",
        default_value = "",
        hide_default_value = true
    )]
    spool: String,
    /// Whether agents update themselves: on or off
    #[arg(
        long,
        value_name = "ON|OFF",
        default_value = "",
        hide_default_value = true
    )]
    update: String,
    /// When an agent may restart for an update, in UTC: 'mon-fri 08:00-16:00' [default: always]
    #[arg(
        long,
        value_name = "HOURS",
        default_value = "",
        hide_default_value = true
    )]
    update_hours: String,
}

#[derive(Debug, clap::Args)]
pub struct How {
    /// Do it although the instances have no room for the reports that it causes
    #[arg(long)]
    force: bool,
    /// Why, for the record
    #[arg(long, value_parser = name, default_value = "", hide_default_value = true)]
    reason: String,
    #[command(flatten)]
    by: Actor,
    #[arg(long, value_enum, default_value_t)]
    output: Output,
}

impl RuleArgs {
    fn settings(&self) -> Result<AgentSettings, Usage> {
        let lists = [
            ("left_out", self.leave_out.join(",")),
            ("ignored_mounts", self.ignore_mount.join(",")),
            ("ignored_file_systems", self.ignore_file_system.join(",")),
            ("ignored_interfaces", self.ignore_interface.join(",")),
        ];
        let get = |name: &str| match name {
            "interval" => self.interval.as_str(),
            "log" => &self.log,
            "log_for" => &self.log_until,
            "spool" => &self.spool,
            "update" => &self.update,
            "update_hours" => &self.update_hours,
            _ => {
                let mut lists = lists.iter();
                lists
                    .find(|(list, _)| *list == name)
                    .map_or("", |(_, text)| text)
            }
        };
        AgentSettings::read(get, Timestamp::now()).map_err(Usage)
    }

    fn new_rule(self) -> anyhow::Result<NewRule> {
        let patch = self.settings()?;
        let selector = labels::joined(self.selector)?;
        if !self.all && selector.is_empty() {
            return Err(Usage("--selector needs a label; --all means every host".into()).into());
        }
        Ok(NewRule {
            priority: self.priority.unwrap_or(USUAL_PRIORITY),
            selector,
            patch,
            share: self.share.unwrap_or(100),
        })
    }

    /// `known` with what is given over it.
    fn over(self, known: SettingsRule, clear: &[String]) -> anyhow::Result<NewRule> {
        let patch = known.patch.changed(&self.settings()?, clear)?;
        let selector = labels::joined(self.selector)?;
        Ok(NewRule {
            priority: self.priority.unwrap_or(known.priority),
            selector: match self.all || !selector.is_empty() {
                true => selector,
                false => known.selector,
            },
            patch,
            share: self.share.unwrap_or(known.share),
        })
    }
}

pub async fn run(command: Command) -> anyhow::Result<ExitCode> {
    match command {
        Command::List(args) => view::list(args).await,
        Command::Show { host, output } => view::show(&host, output).await,
        Command::Add(args) => {
            let change = RuleChange::Add(args.rule.new_rule()?);
            apply(&open().await?, &change, &args.how).await
        }
        Command::Change(args) => {
            let store = open().await?;
            let known = store.settings_rule(args.number).await?;
            let known = known.with_context(|| format!("there is no rule {}", args.number))?;
            let rule = args.rule.over(known, &args.clear)?;
            apply(&store, &RuleChange::Change(args.number, rule), &args.how).await
        }
        Command::Remove { rule, how } => {
            apply(&open().await?, &RuleChange::Remove(rule), &how).await
        }
        Command::Preview(args) => {
            let (change, how) = (RuleChange::Add(args.rule.new_rule()?), args.how);
            let store = open().await?;
            let cost = store.settings_change(&change, Apply::Preview, &how.by.actor, "");
            let cost = cost.await?;
            how.output.print(&cost, || cost.to_string())?;
            Ok(ExitCode::SUCCESS)
        }
    }
}

/// Says what the change touches and costs before it makes it.
async fn apply(store: &Store, change: &RuleChange, how: &How) -> anyhow::Result<ExitCode> {
    let (actor, reason) = (&how.by.actor, &how.reason);
    let preview = store.settings_change(change, Apply::Preview, actor, reason);
    let mut cost = preview.await?;
    if how.force || cost.fits() {
        eprintln!("{cost}");
        let apply = if how.force {
            Apply::Forced
        } else {
            Apply::IfRoom
        };
        cost = store.settings_change(change, apply, actor, reason).await?;
    }
    if !cost.applied {
        bail!(
            "nothing was changed, because the instances cannot take it: {cost}; --force does it all the same"
        );
    }
    how.output.print(&cost, || {
        let done = match change {
            RuleChange::Add(_) => "added",
            RuleChange::Change(..) => "changed",
            RuleChange::Remove(_) => "removed",
        };
        format!("rule {} is {done}", cost.rule)
    })?;
    Ok(ExitCode::SUCCESS)
}
