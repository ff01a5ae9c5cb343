//! Cells by their commands, with agents that speak the protocol by themselves.

use std::{fs, os::unix::fs::PermissionsExt, time::Duration};

use anyhow::{Context, Result, bail, ensure};
use svc_ingest::config::Timing;
use svc_proto::{
    ClientMessage, ServerMessage,
    contract::GOODBYE_MOVED,
    v1::{CellState, Goodbye, Hello, Move},
};
use svc_testkit::{ActiveAgent, HeartbeatCall, Instance, Site, assert_contains};

use crate::commands::{json, output_of};

fn quick(timing: &mut Timing) {
    timing.offers = Duration::from_millis(200);
}

async fn cell() -> Result<(Site, Instance)> {
    let site = Site::new().await?;
    let instance = site.instance().timing(quick).start().await?;
    Ok((site, instance))
}

/// Names b in a.
async fn named(a: &Site, b: &Site, instance: &Instance) -> Result<()> {
    let (address, ca) = (instance.grpc.to_string(), b.path("server.crt"));
    let ca = ca.display().to_string();
    let add = ["cell", "add", "b", "--address", &address, "--ca", &ca];
    output_of(a, &add).await.map(drop)
}

async fn opened(agent: &ActiveAgent, acked_elsewhere: u64) -> Result<HeartbeatCall> {
    let cell = Some(CellState {
        acked_elsewhere,
        ..CellState::default()
    });
    let hello = Hello {
        cell,
        ..agent.agent.hello()
    };
    let opened = agent.agent.try_heartbeat(agent.address, &agent.jwt, hello);
    opened
        .await?
        .map_err(|refused| anyhow::anyhow!("{refused:?}"))
}

async fn next_move(call: &mut HeartbeatCall) -> Result<Move> {
    loop {
        match call.receive().await? {
            Ok(Some(ServerMessage::MoveTo(order))) => return Ok(order),
            Ok(Some(_)) => {}
            ended => bail!("{ended:?}"),
        }
    }
}

async fn leaves(mut call: HeartbeatCall) -> Result<()> {
    call.send(ClientMessage::Goodbye(Goodbye {
        reason: GOODBYE_MOVED.into(),
        back_within: None,
    }))
    .await?;
    ensure!(call.end().await?.is_none());
    Ok(())
}

#[tokio::test]
async fn the_commands_carry_an_agent_and_its_numbers_to_another_cell() -> Result<()> {
    let ((a, at_a), (b, at_b)) = (cell().await?, cell().await?);
    named(&a, &b, &at_b).await?;
    let agent = ActiveAgent::new(&a, at_a.grpc, 1).await?;
    let mut call = opened(&agent, 0).await?;
    call.report_acked(1..=5).await?;

    let file = a.path("agents.jsonl").display().to_string();
    let export = ["cell", "export", "--all", "--out", &file];
    output_of(&a, &export).await?;
    ensure!(fs::metadata(&file)?.permissions().mode() & 0o777 == 0o600);
    ensure!(!fs::read_to_string(&file)?.contains(&agent.jwt));
    let imported = json(&b, &["cell", "import", &file]).await?;
    ensure!(imported["new"] == 1, "{imported}");
    let imported = json(&b, &["cell", "import", &file]).await?;
    ensure!(imported["known"] == 1, "{imported}");
    b.expect(
        "SELECT presence, acked_seq, moved_count FROM agent_state",
        "moved|5|5",
    )
    .await?;

    // Two more arrive after the export.
    call.report_acked(6..=7).await?;
    let told = json(&a, &["cell", "move", &agent.id, "--to", "b"]).await?;
    ensure!(told["told"] == 1, "{told}");
    let order = next_move(&mut call).await?;
    ensure!(order.cell == "b" && order.addresses == [at_b.grpc.to_string()]);
    ensure!(order.certificates.len() == 1);
    let answer = agent.agent.register(at_a.grpc, "").await?;
    ensure!(answer.move_to.as_ref() == Some(&order), "{answer:?}");

    let answer = agent.agent.register(at_b.grpc, "").await?;
    let moved = ActiveAgent {
        id: answer.agent_id,
        jwt: answer.credential.context("admitted without a token")?.jwt,
        address: at_b.grpc,
        ..agent.clone()
    };
    let mut there = opened(&moved, 7).await?;
    ensure!(there.welcome.acked_seq == 7);
    leaves(call).await?;
    there.report_acked(8..=9).await?;
    b.becomes(
        "SELECT acked_seq, stored_count, moved_count, gap_count FROM agent_state",
        "9|2|7|0",
    )
    .await?;
    a.becomes(
        "SELECT presence, cause, acked_seq FROM agent_state",
        "moved|moved|7",
    )
    .await?;
    let shown = output_of(&a, &["agent", "show", &agent.id]).await?;
    assert_contains(&shown, "moved to b");
    let status = json(&a, &["cell", "status"]).await?;
    ensure!(status[0]["moved_at"].is_string(), "{status}");
    let away = json(&a, &["status"]).await?;
    ensure!(away["agents"]["offline"] == 0, "{away}");
    Ok(())
}

#[tokio::test]
async fn only_an_agent_that_knows_how_is_told_and_only_one_that_was_told_has_moved() -> Result<()> {
    let ((a, at_a), (b, at_b)) = (cell().await?, cell().await?);
    let agent = ActiveAgent::new(&a, at_a.grpc, 1).await?;
    let old = ActiveAgent::new(&a, at_a.grpc, 2).await?;
    let mut call = opened(&agent, 0).await?;
    let simple = old.heartbeat().await?;
    let unknown = ["cell", "move", "--all", "--to", "b"];
    let refused = a.command_process(&unknown).exits(1).await?;
    assert_contains(&refused.stderr, "there is no cell b");
    named(&a, &b, &at_b).await?;

    leaves(call).await?;
    a.becomes(
        "SELECT presence, cause FROM agent_state WHERE presence <> 'online'",
        "offline|goodbye",
    )
    .await?;
    call = opened(&agent, 0).await?;
    let told = json(&a, &unknown).await?;
    ensure!(told["told"] == 1 && told["unable"] == 1, "{told}");
    let stopped = json(&a, &["cell", "move", "--all", "--back"]).await?;
    ensure!(stopped["stopped"] == 1, "{stopped}");
    output_of(&a, &["cell", "remove", "b"]).await?;
    drop(simple);
    call.report_acked(1..=1).await
}
