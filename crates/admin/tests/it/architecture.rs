//! The structure that ARCHITECTURE.md promises, read from the sources of all crates: no import cycle between modules,
//! no dependency between crates that its table does not name, and generated protobuf types only at the edges.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

use crate::repository::{path, text, texts};

/// A module as its path from the crate root: `["grpc", "heartbeat", "stream"]`.
type Module = Vec<String>;

/// The modules of a crate with the text of their files, without unit tests.
struct Sources(BTreeMap<Module, String>);

impl Sources {
    fn of(name: &str) -> Self {
        let root = path("crates").join(name).join("src");
        let files = texts(root.clone(), "rs").into_iter();
        let modules = files.filter_map(|(file, text)| {
            let module = module_of(file.strip_prefix(&root).ok()?)?;
            Some((module, without_tests(&text)))
        });
        Self(modules.collect())
    }

    /// The modules that `module` imports, each as precisely as the path names it.
    fn imports(&self, module: &Module) -> BTreeSet<Module> {
        let text = &self.0[module];
        let mut found = BTreeSet::new();
        for path in used_paths(text) {
            if let Some(target) = absolute(module, &path) {
                found.insert(self.resolve(&target));
            }
        }
        found.remove(module);
        found
    }

    /// The longest prefix of a path that is a module, followed through one re-export: `session::Inbox` is
    /// `session::inbox` if `session.rs` says `pub use inbox::Inbox`.
    fn resolve(&self, path: &[String]) -> Module {
        let longest = (0..=path.len()).rev();
        let module = longest
            .map(|length| path[..length].to_vec())
            .find(|prefix| prefix.is_empty() || self.0.contains_key(prefix))
            .unwrap_or_default();
        let Some(item) = path.get(module.len()) else {
            return module;
        };
        let reexport = self.0.get(&module).and_then(|text| {
            let mut paths = used_paths(text).into_iter();
            paths.find(|used| used.len() > 1 && used.last() == Some(item))
        });
        let target = reexport.and_then(|used| {
            let child: Module = [&module[..], &used[..1]].concat();
            self.0.contains_key(&child).then_some(child)
        });
        target.unwrap_or(module)
    }

    /// For every folder: which of its children import which others.
    fn sibling_edges(&self) -> BTreeSet<(Module, Module)> {
        let mut edges = BTreeSet::new();
        for module in self.0.keys() {
            for target in self.imports(module) {
                let common = module
                    .iter()
                    .zip(&target)
                    .take_while(|(one, other)| one == other)
                    .count();
                // An import between a module and its own ancestor joins no siblings.
                if module.len() > common && target.len() > common {
                    edges.insert((module[..=common].to_vec(), target[..=common].to_vec()));
                }
            }
        }
        edges
    }
}

/// The crates' names without `svc-`, which are those of their folders.
fn crate_names() -> Vec<String> {
    let folders = fs::read_dir(path("crates")).expect("the crates").flatten();
    folders
        .filter_map(|folder| folder.file_name().into_string().ok())
        .collect()
}

fn module_of(file: &Path) -> Option<Module> {
    let text = file.to_str()?.strip_suffix(".rs")?;
    let skip = ["lib", "main"].contains(&text);
    (!skip).then(|| text.split('/').map(str::to_owned).collect())
}

fn without_tests(text: &str) -> String {
    let code = text.split("#[cfg(test)]").next().unwrap_or_default();
    let lines = code
        .lines()
        .map(|line| line.split("//").next().unwrap_or_default());
    lines.collect::<Vec<_>>().join("\n")
}

/// Every path of the `use` declarations, with braces expanded and aliases dropped, and every inline
/// `crate::…` path.
fn used_paths(text: &str) -> Vec<Module> {
    let mut paths = Vec::new();
    let uses = text.split_inclusive(';').filter_map(|statement| {
        let at = statement.find("use ")?;
        let before = statement[..at].trim_end();
        let is_import = before.is_empty() || before.ends_with([';', '}', ')', ']', 'b']);
        is_import.then(|| statement[at + 4..].trim_end_matches(';'))
    });
    uses.for_each(|tree| expand(&[], tree, &mut paths));
    for (at, _) in text.match_indices("crate::") {
        let inline: String = text[at..]
            .chars()
            .take_while(|char| char.is_alphanumeric() || "_:".contains(*char))
            .collect();
        paths.push(segments(&inline));
    }
    paths
}

fn expand(prefix: &[String], tree: &str, paths: &mut Vec<Module>) {
    let tree = tree.trim();
    let Some((head, rest)) = tree.split_once('{') else {
        let plain = tree.split(" as ").next().unwrap_or_default();
        paths.push([prefix, &segments(plain)].concat());
        return;
    };
    let prefix = [prefix, &segments(head)].concat();
    let inner = rest.trim_end().strip_suffix('}').unwrap_or(rest);
    let (mut depth, mut start) = (0, 0);
    for (at, char) in inner.char_indices().chain([(inner.len(), ',')]) {
        match char {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                if !inner[start..at].trim().is_empty() {
                    expand(&prefix, &inner[start..at], paths);
                }
                start = at + 1;
            }
            _ => {}
        }
    }
}

fn segments(path: &str) -> Module {
    path.split("::")
        .map(str::trim)
        .filter(|segment| !segment.is_empty())
        .map(str::to_owned)
        .collect()
}

/// A path of this crate from its root; `None` for paths of other crates.
fn absolute(module: &Module, path: &[String]) -> Option<Module> {
    match path.first()?.as_str() {
        "crate" => Some(path[1..].to_vec()),
        "super" => {
            let ups = path.iter().take_while(|part| *part == "super").count();
            let base = module.len().checked_sub(ups)?;
            Some([&module[..base], &path[ups..]].concat())
        }
        "self" => Some([&module[..], &path[1..]].concat()),
        _ => None,
    }
}

/// The edges that lie on a cycle or between cycles: modules that import nothing, or that nothing imports, are
/// removed until none is left.
fn cyclic(edges: &BTreeSet<(Module, Module)>) -> BTreeSet<(Module, Module)> {
    let mut left = edges.clone();
    loop {
        let before = left.len();
        let origins: BTreeSet<Module> = left.iter().map(|(from, _)| from.clone()).collect();
        left.retain(|(_, to)| origins.contains(to));
        let targets: BTreeSet<Module> = left.iter().map(|(_, to)| to.clone()).collect();
        left.retain(|(from, _)| targets.contains(from));
        if left.len() == before {
            return left;
        }
    }
}

#[test]
fn no_modules_import_each_other_in_a_cycle() {
    let mut found = 0;
    for name in crate_names() {
        let edges = Sources::of(&name).sibling_edges();
        found += edges.len();
        let shown = cyclic(&edges)
            .into_iter()
            .map(|(from, to)| format!("{name}: {} -> {}", from.join("::"), to.join("::")));
        let shown: Vec<_> = shown.collect();
        assert!(shown.is_empty(), "these imports form a cycle: {shown:#?}");
    }
    assert!(found > 400, "only {found} imports were found");
    let edges = Sources::of("ingest").sibling_edges();
    let knows = |from: &str, to: &str| edges.contains(&(segments(from), segments(to)));
    assert!(knows("grpc", "session") && knows("grpc::heartbeat", "grpc::convert"));
}

#[test]
fn a_cycle_would_be_found() {
    let edge = |from: &str, to: &str| (segments(from), segments(to));
    let chain = BTreeSet::from([edge("a", "b"), edge("b", "c")]);
    assert!(cyclic(&chain).is_empty());
    let closed = chain.into_iter().chain([edge("c", "a"), edge("c", "d")]);
    assert_eq!(cyclic(&closed.collect()).len(), 3);
}

#[test]
fn generated_protobuf_types_stay_at_the_edges() {
    let mut users = Vec::new();
    for name in ["ingest", "pipeline"] {
        let sources = Sources::of(name).0.into_iter();
        let using = sources.filter(|(_, text)| text.contains("svc_proto"));
        users.extend(using.map(|(module, _)| format!("{name}::{}", module.join("::"))));
    }
    assert!(users.len() > 5, "the users of svc_proto: {users:?}");
    for user in users {
        let allowed = user.starts_with("ingest::grpc")
            || matches!(
                user.as_str(),
                "pipeline::queue::payload" | "pipeline::vitals"
            );
        assert!(allowed, "{user} uses svc_proto");
    }
}

/// The crates of this project that a crate depends on, by a table of its Cargo.toml.
fn dependencies(name: &str, table: &str) -> BTreeSet<String> {
    let manifest = path("crates").join(name).join("Cargo.toml");
    let manifest = fs::read_to_string(manifest).expect("a manifest");
    let lines = manifest.lines().skip_while(|line| *line != table).skip(1);
    lines
        .take_while(|line| !line.starts_with('['))
        .filter_map(|line| line.strip_prefix("svc-")?.split(['.', ' ', '=']).next())
        .map(str::to_owned)
        .collect()
}

#[test]
fn crates_depend_on_what_the_document_says() {
    let document = text("ARCHITECTURE.md");
    let rows = document.lines().filter_map(|line| {
        let cells: Vec<&str> = line.trim_matches('|').split(" | ").collect();
        let name = cells
            .first()?
            .trim()
            .strip_prefix("[`")?
            .split('`')
            .next()?;
        let uses = cells.get(2)?.trim().split(", ").filter(|used| *used != "–");
        Some((name.to_owned(), uses.map(str::to_owned).collect()))
    });
    let documented: BTreeMap<String, BTreeSet<String>> = rows.collect();
    let real = crate_names().into_iter().map(|name| {
        let uses = dependencies(&name, "[dependencies]");
        (name, uses)
    });
    assert_eq!(documented, real.collect());
}

/// What a crate needs by a table of its Cargo.toml, directly and through the crates that it depends on.
fn needed(name: &str, table: &str) -> BTreeSet<String> {
    let mut needed = dependencies(name, table);
    for _ in 0..crate_names().len() {
        let next: Vec<_> = needed
            .iter()
            .flat_map(|name| dependencies(name, "[dependencies]"))
            .collect();
        needed.extend(next);
    }
    needed
}

#[test]
fn the_stores_tests_do_not_build_the_service() {
    let needed = needed("store", "[dev-dependencies]");
    assert!(!needed.is_empty());
    assert!(!needed.contains("ingest"), "{needed:?}");
}

#[test]
fn the_fleet_does_not_link_the_service() {
    let needed = needed("fleet", "[dependencies]");
    assert!(needed.contains("store"), "through the harness: {needed:?}");
    for service in ["front", "pipeline", "ingest", "admin"] {
        assert!(!needed.contains(service), "{needed:?}");
    }
}
