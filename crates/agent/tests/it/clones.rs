//! A copy of a disk takes a key of its own, and disturbs nobody.

use anyhow::{Result, ensure};
use svc_agent::{
    data_dir::{IDENTITY, SUCCESSOR},
    identity::Identity,
    status::Enrolment,
};

use crate::{
    agents::{AUTO, token},
    harness::Site,
    played::{Installed, agent_id, approve, becomes, books_balance},
};

#[tokio::test]
async fn a_copy_waits_as_a_new_host_that_says_what_it_was_cloned_from() -> Result<()> {
    let site = Site::new().await?;
    let service = site.instance().start().await?;
    let secret = token(&site, AUTO).await?;
    let original = Installed::new(&site, 1, &[service.grpc], &secret)?;
    let running = original.start()?;
    original.connected().await?;
    let origin = agent_id(&site).await?;

    let copy = original.cloned(&site, 2)?;
    let cloned = copy.start()?;
    let pending = format!(
        "SELECT count(*) FROM agents a JOIN hosts h ON h.id = a.host_id
          WHERE a.status = 'pending' AND a.cloned_from = '{origin}' AND h.hostname = 'web-2'"
    );
    becomes(&site, &pending, "1").await?;
    copy.status_becomes("the copy waits with its new key", |status| {
        status.enrolment == Enrolment::Pending
    })
    .await?;
    ensure!(copy.status()?.fingerprint != original.status()?.fingerprint);
    let undisturbed =
        format!("SELECT presence, epoch FROM agent_state WHERE agent_id = '{origin}'");
    ensure!(site.psql(&undisturbed).await? == "online|1");
    becomes(&site, "SELECT uses FROM enrolment_tokens", "1").await?;

    let successor = copy.status()?.agent_id.expect("its id is known");
    approve(&site, &successor).await?;
    let online =
        format!("SELECT presence, acked_seq > 0 FROM agent_state WHERE agent_id = '{successor}'");
    becomes(&site, &online, "online|t").await?;
    ensure!(site.psql(&undisturbed).await? == "online|1");
    let former = std::fs::read_dir(copy.path())?.flatten();
    let former = former.filter(|file| file.file_name().to_string_lossy().starts_with("former-"));
    ensure!(former.count() == 1, "the old key was not set aside");
    cloned.stop().await?;
    running.stop().await?;
    books_balance(&site).await
}

#[tokio::test]
async fn a_copy_that_was_interrupted_goes_on_with_the_key_it_had_made() -> Result<()> {
    let site = Site::new().await?;
    let service = site.instance().start().await?;
    let secret = token(&site, AUTO).await?;
    let original = Installed::new(&site, 1, &[service.grpc], &secret)?;
    let running = original.start()?;
    original.connected().await?;

    // Made, and perhaps told to the service, when it was interrupted.
    let copy = original.cloned(&site, 2)?;
    let (identity, text) = Identity::generate_with_pem()?;
    std::fs::write(copy.path().join(SUCCESSOR), &text)?;
    let cloned = copy.start()?;
    let known = format!(
        "SELECT count(*) FROM agents WHERE status = 'pending' AND encode(key, 'hex') = '{}'",
        identity.fingerprint()
    );
    becomes(&site, &known, "1").await?;
    copy.status_becomes("it waits", |status| status.enrolment == Enrolment::Pending)
        .await?;
    cloned.kill().await?;

    // Between the two renamings.
    std::fs::rename(copy.path().join(IDENTITY), copy.path().join(SUCCESSOR))?;
    let cloned = copy.start()?;
    copy.status_becomes("it waits", |status| status.enrolment == Enrolment::Pending)
        .await?;
    ensure!(copy.status()?.fingerprint == identity.fingerprint());
    becomes(&site, "SELECT count(*) FROM agents", "2").await?;
    cloned.stop().await?;
    running.stop().await
}
