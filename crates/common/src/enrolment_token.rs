//! The form of an enrolment token: `svc_enr_`, 32 random base62 characters, and a checksum of 6 characters.
//!
//! The prefix lets secret scanners find leaked tokens. The checksum detects mistyped tokens without a query.

use std::fmt;

use aws_lc_rs::{
    digest::{SHA256, digest},
    error::Unspecified,
    rand,
};
use secrecy::{ExposeSecret, SecretString};

const PREFIX: &str = "svc_enr_";
const SECRET_LENGTH: usize = 32;
const CHECKSUM_LENGTH: usize = 6;
const ALPHABET: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";

/// A token of the right form. Its `Debug` output hides the secret.
#[derive(Clone, Debug)]
pub struct EnrolmentToken(SecretString);

/// SHA-256 of a token. The database stores only this, and finds tokens by it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct TokenHash(pub [u8; 32]);

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not of the form of an enrolment token: it is mistyped or cut short")]
pub struct MalformedToken;

impl EnrolmentToken {
    /// A new token, from the operating system's random source.
    pub fn generate() -> Result<Self, Unspecified> {
        let mut body = String::with_capacity(SECRET_LENGTH);
        while body.len() < SECRET_LENGTH {
            let mut bytes = [0; SECRET_LENGTH];
            rand::fill(&mut bytes)?;
            // 248 = 4 × 62: with larger bytes the first characters would be more likely.
            let unbiased = bytes.iter().filter(|byte| **byte < 248);
            let missing = SECRET_LENGTH - body.len();
            body.extend(
                unbiased
                    .take(missing)
                    .map(|byte| char::from(ALPHABET[usize::from(byte % 62)])),
            );
        }
        Ok(Self(format!("{PREFIX}{body}{}", checksum(&body)).into()))
    }

    /// Checks the form and the checksum; whether the token exists is the database's answer.
    pub fn parse(text: &str) -> Result<Self, MalformedToken> {
        let rest = text.strip_prefix(PREFIX).ok_or(MalformedToken)?;
        let right_form = rest.len() == SECRET_LENGTH + CHECKSUM_LENGTH
            && rest.bytes().all(|b| b.is_ascii_alphanumeric());
        if !right_form || checksum(&rest[..SECRET_LENGTH]) != rest[SECRET_LENGTH..] {
            return Err(MalformedToken);
        }
        Ok(Self(text.into()))
    }

    pub fn hash(&self) -> TokenHash {
        let mut hash = [0; 32];
        hash.copy_from_slice(digest(&SHA256, self.0.expose_secret().as_bytes()).as_ref());
        TokenHash(hash)
    }

    /// The secret, for the answer to the token's creation and for no other place.
    pub fn expose(&self) -> &str {
        self.0.expose_secret()
    }
}

impl fmt::Debug for TokenHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TokenHash(..)")
    }
}

/// 32 bits of SHA-256 in base62, most significant digit first.
fn checksum(body: &str) -> String {
    let hash = digest(&SHA256, format!("{PREFIX}{body}").as_bytes());
    let mut rest = hash
        .as_ref()
        .iter()
        .take(4)
        .fold(0_u32, |number, byte| (number << 8) | u32::from(*byte));
    let mut digits = [b'0'; CHECKSUM_LENGTH];
    for digit in digits.iter_mut().rev() {
        *digit = ALPHABET[(rest % 62) as usize];
        rest /= 62;
    }
    digits.iter().map(|digit| char::from(*digit)).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_new_token_has_the_documented_form_and_does_not_print_its_secret() {
        let token = EnrolmentToken::generate().unwrap();
        assert_eq!(token.expose().len(), 46);
        assert!(token.expose().starts_with("svc_enr_"));
        assert_eq!(
            EnrolmentToken::parse(token.expose()).unwrap().hash(),
            token.hash()
        );
        assert!(!format!("{token:?}{:?}", token.hash()).contains(&token.expose()[8..]));
        assert_ne!(EnrolmentToken::generate().unwrap().expose(), token.expose());
    }

    #[test]
    fn the_test_vectors_of_the_guide_have_the_form_and_the_hash_that_it_names() {
        let guide = include_str!("../../../docs/enrolment.md");
        let rows = guide
            .lines()
            .filter_map(|line| line.strip_prefix("| `")?.strip_suffix("` |"));
        let vectors: Vec<_> = rows
            .filter_map(|row| row.split_once("` | `"))
            .filter(|(token, _)| token.starts_with(PREFIX))
            .collect();
        assert!(vectors.len() >= 3, "docs/enrolment.md has test vectors");
        for (token, hash) in vectors {
            let parsed = EnrolmentToken::parse(token).unwrap();
            let hex: String = parsed.hash().0.map(|byte| format!("{byte:02x}")).concat();
            assert_eq!(hex, hash, "{token}");
        }
    }

    #[test]
    fn malformed_tokens_are_refused() {
        let good = EnrolmentToken::generate().unwrap().expose().to_owned();
        let homoglyph = good.replacen("svc", "ѕvc", 1);
        for text in [
            "",
            " ",
            "svc_enr_",
            &good[1..],
            &good[..45],
            &format!("{good}0"),
            &format!("{good}\n"),
            &format!(" {good}"),
            &good.to_uppercase(),
            &good.replace("svc_enr_", "svc_xyz_"),
            &homoglyph,
            &format!("{}\0", &good[..45]),
            &"x".repeat(100_000),
        ] {
            assert_eq!(
                EnrolmentToken::parse(text).unwrap_err(),
                MalformedToken,
                "{text:?}"
            );
        }
    }

    proptest! {
        #[test]
        fn any_single_changed_character_is_detected(position in 8_usize..46, replacement in "[0-9A-Za-z]") {
            let good = EnrolmentToken::generate().unwrap().expose().to_owned();
            let mut changed = good.clone();
            changed.replace_range(position..=position, &replacement);
            prop_assert_eq!(EnrolmentToken::parse(&changed).is_ok(), changed == good);
        }

        #[test]
        fn no_text_makes_the_parser_panic(text in ".*") {
            prop_assert!(EnrolmentToken::parse(&text).is_err());
        }
    }
}
