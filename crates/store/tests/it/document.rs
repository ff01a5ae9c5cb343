//! The queries and plans of docs/data-model.md, so that the tests run what the document
//! tells the web application to run.

const DATA_MODEL: &str = include_str!("../../../../docs/data-model.md");

/// The SQL after `<!-- query: {name} -->`.
pub fn query(name: &str) -> &'static str {
    let query = block(&format!("query: {name}"));
    query.trim_end().trim_end_matches(';')
}

/// The lines of the plan after `<!-- plan: {name} -->`.
pub fn plan(name: &str) -> std::str::Lines<'static> {
    block(&format!("plan: {name}")).lines()
}

/// The fenced block after `<!-- {marker} -->`.
fn block(marker: &str) -> &'static str {
    let marker = format!("<!-- {marker} -->\n```");
    let (_, rest) = DATA_MODEL.split_once(&marker).expect(&marker);
    let (_, rest) = rest.split_once('\n').expect("a language");
    let (block, _) = rest.split_once("```").expect("an end");
    block
}
