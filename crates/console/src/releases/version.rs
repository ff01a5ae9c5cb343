//! The order of versions: that of Semantic Versioning, also for names of Debian and RPM packages (`1.0.0~rc.1`), and with the
//! build last: `1.0.0-rc.1` < `1.0.0` < `1.0.0+45.gabcdef0`, as `scripts/version` names them.

/// A part of a pre-release or build: numbers rank below words.
type Part<'a> = (bool, u64, &'a str);

/// What a version is compared by, or `None` if it is no version.
pub fn order(version: &str) -> Option<(Vec<u64>, bool, Vec<Part<'_>>, Vec<Part<'_>>)> {
    let (version, build) = version.split_once('+').unwrap_or((version, ""));
    let (core, candidate) = version.split_once(['-', '~']).unwrap_or((version, ""));
    let core = core.split('.').map(|part| part.parse().ok());
    let is_final = candidate.is_empty();
    Some((
        core.collect::<Option<_>>()?,
        is_final,
        parts(candidate),
        parts(build),
    ))
}

fn parts(text: &str) -> Vec<Part<'_>> {
    let parts = text.split('.').filter(|part| !part.is_empty());
    let part = |part: &'_ str| part.parse().ok();
    parts
        .map(|text| part(text).map_or((true, 0, text), |number| (false, number, "")))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_release_candidate_ranks_below_its_release() {
        let ordered = [
            "0.9.0",
            "0.10.2",
            "1.0.0-alpha",
            "1.0.0-alpha.1",
            "1.0.0-rc.2",
            "1.0.0-rc.10",
            "1.0.0",
            "1.0.0+45.gabcdef0",
            "1.0.0+46.g1234567.dirty",
            "1.0.1-rc.1",
            "1.0.1",
        ];
        for pair in ordered.windows(2) {
            let [older, newer] = pair else { unreachable!() };
            assert!(order(older) < order(newer), "{older} {newer}");
        }
        assert!(order("1.0.0~rc.1") < order("1.0.0"));
        assert_eq!(order("1.0.0~rc.1"), order("1.0.0-rc.1"));
        for name in ["", "latest", "1..0", "v1.0.0", "1.0.0.x"] {
            assert_eq!(order(name), None, "{name}");
        }
    }
}
