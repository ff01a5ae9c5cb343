//! How templates become text: the one place that renders pages and their parts.
//!
//! Askama escapes what HTML would read. What a person would not see, such as a character that reverses the text behind it, is
//! shown by its number here: in the whole text, so that no template can forget a name. The templates have no such character.

use askama::Template;
use svc_common::text::visible_lines;

pub fn render(template: &impl Template) -> askama::Result<String> {
    Ok(visible_lines(&template.render()?).into_owned())
}
