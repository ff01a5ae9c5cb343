//! docs/data-model.md as the tests read it: what it tells the web application to run
//! is what is tested.

const DATA_MODEL: &str = include_str!("../../../../docs/data-model.md");

/// The fenced block after `<!-- {marker} -->`.
fn block(marker: &str) -> &'static str {
    let marker = format!("<!-- {marker} -->\n```");
    let (_, rest) = DATA_MODEL.split_once(&marker).expect(&marker);
    let (_, rest) = rest.split_once('\n').expect("a language");
    let (block, _) = rest.split_once("```").expect("an end");
    block
}

/// The SQL under a name.
pub fn query(name: &str) -> &'static str {
    let query = block(&format!("query: {name}"));
    query.trim_end().trim_end_matches(';')
}

/// The plan under a name, line by line.
pub fn plan(name: &str) -> std::str::Lines<'static> {
    block(&format!("plan: {name}")).lines()
}
