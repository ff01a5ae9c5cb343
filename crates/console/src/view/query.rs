//! Queries of addresses, and what they mean for the list of hosts.

use svc_store::{HostSearch, HostSort};
use url::form_urlencoded;

/// The search for the hosts with a label.
pub fn label_query(name: &str, value: &str) -> String {
    match value.contains(char::is_whitespace) || name.contains(char::is_whitespace) {
        true => format!("label:\"{name}={value}\""),
        false => format!("label:{name}={value}"),
    }
}

/// The search for the hosts whose agents have a version.
pub fn version_query(version: &str) -> String {
    match version.contains(char::is_whitespace) {
        true => format!("version:\"{version}\""),
        false => format!("version:{version}"),
    }
}

/// The query of an address: the fields that have a value.
pub fn address_query(fields: &[(&str, &str)]) -> String {
    let mut query = form_urlencoded::Serializer::new(String::new());
    query.extend_pairs(fields.iter().filter(|(_, value)| !value.is_empty()));
    query.finish()
}

/// The order that a page asks for. Hosts that are online have none by the length of their absence.
pub fn sort(name: &str, search: &HostSearch) -> HostSort {
    let sort = HostSort::parse(name).unwrap_or_default();
    match search.online {
        Some(true) if sort == HostSort::Offline => HostSort::Name,
        _ => sort,
    }
}

#[cfg(test)]
mod tests {
    use svc_store::WrittenSearch;

    use super::*;

    #[test]
    fn the_link_of_a_label_finds_it_though_it_has_spaces() {
        for value in ["prod", "web ops", "a=b"] {
            let parsed = WrittenSearch::parse(&label_query("team", value));
            let found = parsed.search.labels.iter().collect::<Vec<_>>();
            assert_eq!((found, parsed.unknown.len()), (vec![("team", value)], 0));
        }
    }
}
