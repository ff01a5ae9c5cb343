//! Parts of names, as LIKE and the index of trigrams take them.

/// Whether the index has something to look for in a text that is anywhere in a name: three letters in
/// a row, or the first letter of a word.
pub(super) fn has_trigram(text: &str) -> bool {
    let letters: Vec<bool> = text.chars().map(|c| c.is_ascii_alphanumeric()).collect();
    letters.windows(3).any(|three| three == [true; 3])
        || letters.windows(2).any(|two| two == [false, true])
}

/// The pattern of LIKE that finds `text` anywhere, with its wildcards taken literally.
pub(in crate::people::console) fn like(text: &str) -> String {
    let mut pattern = String::from("%");
    for letter in text.chars() {
        if matches!(letter, '%' | '_' | '\\') {
            pattern.push('\\');
        }
        pattern.push(letter);
    }
    pattern.push('%');
    pattern
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wildcards_in_a_search_are_literal() {
        assert_eq!(like("50%_a\\"), "%50\\%\\_a\\\\%");
    }

    #[test]
    fn only_texts_with_a_trigram_are_looked_for_in_the_index() {
        for text in ["nyc", "web-1", "-1", "10.0.0.7", "::1"] {
            assert!(has_trigram(text), "{text}");
        }
        for text in ["a", "ab", "b-", "%", "--"] {
            assert!(!has_trigram(text), "{text}");
        }
    }
}
