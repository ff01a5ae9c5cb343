//! Links that end, a person's own password and sessions, and the record of what happens to people.

use anyhow::Result;
use svc_store::{LinkKind, Role};
use svc_testkit::assert_contains;

use crate::support::{Client, Console};

const PASSWORD: &str = "correct horse battery";
const OTHER: &str = "bicycle lamp copper";

/// Sets a password by a link, and returns the status.
async fn set(client: &Client, code: &str, password: &str) -> Result<u16> {
    let fields = [("code", code), ("password", password), ("again", password)];
    client.submit("/welcome/password", &fields).await
}

async fn sign_in(console: &Console, name: &str, password: &str) -> Result<(u16, Client)> {
    let mut client = console.client();
    let fields = [("name", name), ("password", password)];
    let answer = client.post("/sign-in", &fields).await?;
    client.keep_cookie(&answer);
    Ok((answer.status, client))
}

/// A person with [`PASSWORD`], signed in.
async fn with_password(console: &Console, name: &str) -> Result<Client> {
    let link = console.link(name, Role::Viewer, LinkKind::SetPassword);
    let code = link.await?;
    assert_eq!(set(&console.client(), &code, PASSWORD).await?, 303);
    let (status, client) = sign_in(console, name, PASSWORD).await?;
    assert_eq!(status, 303);
    Ok(client)
}

#[tokio::test]
async fn a_new_link_and_a_set_password_end_older_links() -> Result<()> {
    let console = Console::start().await?;
    let link = async || {
        let link = console.link("ben", Role::Admin, LinkKind::SetPassword);
        link.await
    };
    let (first, second) = (link().await?, link().await?);
    let client = console.client();
    assert_eq!(set(&client, &first, PASSWORD).await?, 401);
    assert_eq!(client.submit("/welcome", &[("code", &first)]).await?, 401);
    assert_eq!(set(&client, &second, PASSWORD).await?, 303);
    let third = link().await?;
    let (_, ben) = sign_in(&console, "ben", PASSWORD).await?;
    let fields = [("current", PASSWORD), ("password", OTHER), ("again", OTHER)];
    assert_eq!(ben.submit("/me/password", &fields).await?, 303);
    assert_eq!(set(&client, &third, PASSWORD).await?, 401);
    Ok(())
}

#[tokio::test]
async fn people_change_their_own_password_which_ends_their_other_sessions() -> Result<()> {
    let console = Console::start().await?;
    let here = with_password(&console, "ann").await?;
    let (_, there) = sign_in(&console, "ann", PASSWORD).await?;
    let change = async |current: &str, password: &str, again: &str| {
        let fields = [
            ("current", current),
            ("password", password),
            ("again", again),
        ];
        here.post("/me/password", &fields).await
    };
    for (current, password, again, said) in [
        (
            "wrong horse battery",
            OTHER,
            OTHER,
            "current password is wrong",
        ),
        (PASSWORD, OTHER, PASSWORD, "passwords differ"),
        (
            PASSWORD,
            "Password12345",
            "Password12345",
            "too easy to guess: it has a word",
        ),
    ] {
        let refused = change(current, password, again).await?;
        assert_eq!(refused.status, 422, "{said}");
        refused.shows(&[said]);
    }
    assert_eq!(there.status("/me").await?, 200);
    let changed = change(PASSWORD, OTHER, OTHER).await?;
    assert_eq!(changed.header("location"), Some("/me?changed=yes"));
    assert_eq!(here.status("/me").await?, 200);
    assert_eq!(there.status("/me").await?, 303, "the other session ended");
    assert_eq!(sign_in(&console, "ann", PASSWORD).await?.0, 401);
    assert_eq!(sign_in(&console, "ann", OTHER).await?.0, 303);
    Ok(())
}

#[tokio::test]
async fn people_see_their_own_sessions_and_end_them_and_nobody_elses() -> Result<()> {
    let console = Console::start().await?;
    let here = console.signed_in("ann", Role::Viewer).await?;
    let there = console.signed_in("ann", Role::Viewer).await?;
    let third = console.signed_in("ann", Role::Viewer).await?;
    let other = console.signed_in("ben", Role::Admin).await?;
    here.get("/me").await?.shows(&["this one", "127.0.0.1"]);
    let id = async |name: &str| {
        let newest = format!(
            "SELECT s.id FROM console.sessions s JOIN console.users u ON u.id = user_id
              WHERE name = '{name}' ORDER BY s.created_at DESC LIMIT 1"
        );
        console.site.psql(&newest).await
    };
    let end = async |session: &str| here.submit("/me/sessions", &[("session", session)]).await;
    assert_eq!(end(&id("ben").await?).await?, 303);
    assert_eq!(other.status("/").await?, 200, "another person's session");
    assert_eq!(end(&id("ann").await?).await?, 303);
    assert_eq!(third.status("/").await?, 303);
    assert_eq!(there.status("/").await?, 200);
    assert_eq!(end("").await?, 400);
    assert_eq!(end("others").await?, 303);
    assert_eq!(there.status("/").await?, 303);
    assert_eq!(here.status("/").await?, 200);
    Ok(())
}

/// Whoever finds an open browser must not take the account over.
#[tokio::test]
async fn a_person_without_a_password_sets_none_without_a_link() -> Result<()> {
    let (_console, ann) = Console::signed_in_as("ann", Role::Admin).await?;
    assert!(!ann.get("/me").await?.has("/me/password"));
    let fields = [("current", ""), ("password", OTHER), ("again", OTHER)];
    assert_eq!(ann.submit("/me/password", &fields).await?, 422);
    Ok(())
}

#[tokio::test]
async fn what_happens_to_people_is_recorded_with_name_address_and_outcome() -> Result<()> {
    let console = Console::start().await?;
    let admin = console.signed_in("eve", Role::Admin).await?;
    let ann = with_password(&console, "ann").await?;
    for _ in 0..3 {
        sign_in(&console, "ann", "wrong horse battery").await?;
        sign_in(&console, "my secret in the wrong field", "x").await?;
    }
    set(&console.client(), "A".repeat(43).as_str(), PASSWORD).await?;
    let fields = [("current", PASSWORD), ("password", OTHER), ("again", OTHER)];
    ann.submit("/me/password", &fields).await?;
    sign_in(&console, "ann", OTHER).await?;
    ann.submit("/me/sessions", &[("session", "others")]).await?;
    ann.post("/sign-out", &[]).await?;
    let record = "SELECT string_agg(concat_ws(' ', kind, outcome, times, nullif(subject, ''), 'by', actor), '; ' ORDER BY id)
                    FROM people_events WHERE actor IS DISTINCT FROM 'eve' AND actor IS DISTINCT FROM 'test' AND address = '127.0.0.1'";
    let wanted = "link used done 1 ann by ann; password set done 1 ann by ann; sign-in done 1 ann by ann; sign-in done 1 ann by ann; \
                  sign-in refused 3 ann by; sign-in refused 3 by; link used refused 1 by; password set done 1 ann by ann; \
                  sign-in done 1 ann by ann; sessions ended done 1 ann by ann; sign-out done 1 ann by ann";
    console.site.expect(record, wanted).await?;
    let typed = "SELECT count(*) FROM people_events e WHERE e::text LIKE '%wrong field%'";
    console.site.expect(typed, "0").await?;
    let page = admin.get("/activity?kind=sign-in").await?;
    page.shows(&["refused, 3 times", "127.0.0.1"]);
    let export = admin
        .get("/activity/export?format=csv&kind=sign-in")
        .await?;
    export.shows(&["\"refused, 3 times\"", "\"127.0.0.1\""]);
    Ok(())
}

#[tokio::test]
async fn a_flood_of_attempts_is_recorded_as_limited_in_few_rows() -> Result<()> {
    let console = Console::start().await?;
    console.signed_in("ann", Role::Viewer).await?;
    for _ in 0..20 {
        sign_in(&console, "ann", "wrong horse battery").await?;
    }
    let limited =
        "SELECT bool_and(subject = 'ann' AND address = '127.0.0.1') AND sum(times) BETWEEN 1 AND 4
                     FROM people_events WHERE kind = 'sign-in' AND outcome = 'limited'";
    console.site.expect(limited, "t").await
}

#[tokio::test]
async fn a_mistyped_name_makes_no_admin_and_commands_carry_the_systems_user() -> Result<()> {
    let console = Console::start().await?;
    let program = console.program()?.environment([("SUDO_USER", "otto")]);
    let run = async |line: &str| program.clone().arguments(line.split(' ')).run().await;
    let typo = run("user link anm --sign-in").await?;
    assert_eq!(typo.code, Some(1), "{typo:?}");
    assert_contains(&typo.stderr, "there is no person named anm");
    let people = "SELECT count(*) FROM console.users";
    console.site.expect(people, "0").await?;
    let help = run("user link --help").await?;
    assert!(!help.stdout.contains("admin"), "{help:?}");
    for line in [
        "user add ann",
        "user link ann",
        "user disable ann",
        "user enable ann",
    ] {
        assert_eq!(run(line).await?.code, Some(0), "{line}");
    }
    let record = "SELECT string_agg(kind || ' ' || subject || ' by ' || actor, ', ' ORDER BY id) FROM people_events";
    let wanted = "user added ann by otto, link created ann by otto, link created ann by otto, user disabled ann by otto, \
                  user enabled ann by otto";
    console.site.expect(record, wanted).await
}
