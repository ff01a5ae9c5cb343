//! Text from outside, shown so that a person sees every character of it.
//!
//! Anybody can run an agent, and names compare by eye. A character that is invisible, reverses the order of what follows, or
//! moves a terminal's cursor makes two names look alike: such a character is shown by its number, as `[U+202E]`. This is the
//! one rule for tables, pages, exports and logs.

use std::{borrow::Cow, fmt::Write};

/// Whether a person does not see this character as itself: control characters, the format characters of Unicode (category Cf,
/// which has the bidirectional ones, joiners, the soft hyphen and tags), line and paragraph separators, and letters and marks
/// that are drawn as nothing. Spaces and the selectors of an emoji's form (U+FE00 to U+FE0F) hide nothing.
pub fn is_hidden(c: char) -> bool {
    c.is_control()
        || matches!(u32::from(c),
            0xAD | 0x34F | 0x600..=0x605 | 0x61C | 0x6DD | 0x70F | 0x890..=0x891 | 0x8E2 | 0x115F..=0x1160
            | 0x17B4..=0x17B5 | 0x180B..=0x180F | 0x200B..=0x200F | 0x2028..=0x202E | 0x2060..=0x206F | 0x3164
            | 0xFEFF | 0xFFA0 | 0xFFF0..=0xFFFB | 0x110BD | 0x110CD | 0x13430..=0x1343F | 0x1BCA0..=0x1BCA3
            | 0x1D173..=0x1D17A | 0xE0000..=0xE0FFF)
}

/// The text with hidden characters as `[U+202E]`.
pub fn visible(text: &str) -> Cow<'_, str> {
    escaped(text, is_hidden, by_number)
}

/// The same for a text of several lines, such as a table or a page, whose ends stay.
pub fn visible_lines(text: &str) -> Cow<'_, str> {
    escaped(text, is_hidden_in_lines, by_number)
}

/// The same for lines with a terminal's colours, whose writer has escaped what is not its own.
pub fn visible_colours(text: &str) -> Cow<'_, str> {
    let hidden = |c| c != '\u{1b}' && is_hidden_in_lines(c);
    escaped(text, hidden, by_number)
}

/// JSON with hidden characters in the form that JSON itself has for them: programs read what was there before.
pub fn visible_json(json: &str) -> Cow<'_, str> {
    escaped(json, is_hidden_in_lines, |escaped, c| {
        for unit in c.encode_utf16(&mut [0; 2]) {
            let _ = write!(escaped, "\\u{unit:04x}");
        }
    })
}

fn by_number(escaped: &mut String, c: char) {
    let _ = write!(escaped, "[U+{:04X}]", u32::from(c));
}

fn is_hidden_in_lines(c: char) -> bool {
    c != '\n' && is_hidden(c)
}

fn escaped(text: &str, hidden: fn(char) -> bool, escape: fn(&mut String, char)) -> Cow<'_, str> {
    if !text.contains(hidden) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len() + 32);
    for c in text.chars() {
        match hidden(c) {
            true => escape(&mut shown, c),
            false => shown.push(c),
        }
    }
    Cow::Owned(shown)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_hidden_character_is_shown_by_its_number_and_the_rest_as_it_is() {
        assert_eq!(visible("web\u{202e}1"), "web[U+202E]1");
        assert_eq!(visible("a\u{200b}\u{ad}\n"), "a[U+200B][U+00AD][U+000A]");
        assert_eq!(visible("\u{e0041}"), "[U+E0041]");
        for plain in ["web-1", "größe 東京 עברית", "1\u{202f}234 ☂\u{fe0f} –", ""] {
            assert!(matches!(visible(plain), Cow::Borrowed(same) if same == plain));
        }
        assert_eq!(visible_lines("a\nb\u{1b}[2J"), "a\nb[U+001B][2J");
    }

    proptest! {
        #[test]
        fn nothing_hidden_is_left_and_nothing_else_changes(
            parts in prop::collection::vec(("\\p{Cf}|\\p{Cc}|\\p{Zl}|\\p{Zp}|\\p{Default_Ignorable_Code_Point}", "[a-zé東]{0,4}"), 0..8),
            any in ".*",
        ) {
            let text: String = parts.iter().map(|(hidden, plain)| format!("{hidden}{plain}")).collect();
            let selector = |c: &char| matches!(c, '\u{fe00}'..='\u{fe0f}');
            let expected: String = parts
                .iter()
                .map(|(hidden, plain)| match hidden.chars().find(|c| !selector(c)) {
                    Some(c) => format!("[U+{:04X}]{plain}", u32::from(c)),
                    None => format!("{hidden}{plain}"),
                })
                .collect();
            prop_assert_eq!(visible(&text), expected);
            prop_assert!(!visible(&any).contains(is_hidden));
            prop_assert_eq!(visible(&any).is_empty(), any.is_empty());
        }

        #[test]
        fn json_means_the_same(text in "(\\p{Cf}|\\p{Cc}|.){0,20}") {
            let json = serde_json::to_string_pretty(&[&text]).unwrap();
            let shown = visible_json(&json);
            prop_assert!(!shown.contains(is_hidden_in_lines), "{}", shown);
            let read: [String; 1] = serde_json::from_str(&shown).unwrap();
            prop_assert_eq!(read, [text]);
        }
    }
}
