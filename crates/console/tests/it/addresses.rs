//! Addresses that people mistype, or follow after the thing is gone.

use anyhow::Result;
use svc_store::Role;

use crate::support::Console;

/// A malformed id, and one that nothing has, lead to the same page.
#[tokio::test]
async fn an_id_that_is_none_is_not_found_like_one_that_nothing_has() -> Result<()> {
    let (console, client) = Console::signed_in_as("ann", Role::Admin).await?;
    let unknown = "a0000000-0000-4000-8000-000000000001";
    for (pages, words) in [
        ("/hosts", "Look for it by its name in the list of hosts"),
        ("/agents", "The page of its host lists every agent"),
        ("/tokens", "The list of tokens has all of them"),
    ] {
        let missing = client.get(&format!("{pages}/{unknown}")).await?;
        assert_eq!(missing.status, 404);
        missing.shows(&[words]);
        for malformed in ["web-042", "a0000000", "%00", "..%2f.."] {
            let page = client.get(&format!("{pages}/{malformed}")).await?;
            assert_eq!(page.status, 404, "{malformed}");
            assert_eq!(page.body, missing.body, "{malformed}");
        }
    }
    for path in [
        "/hosts/x/note",
        "/hosts/x/retire",
        "/agents/x/decide",
        "/tokens/x/revoke",
    ] {
        let form = [("note", "a"), ("decision", "revoke"), ("reason", "a")];
        assert_eq!(client.submit(path, &form).await?, 404, "{path}");
    }
    let stranger = console.client().status("/hosts/x").await?;
    assert_eq!(stranger, 303, "nobody is signed in");
    Ok(())
}
