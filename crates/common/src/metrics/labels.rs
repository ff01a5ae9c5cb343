//! Label values. All are in snake case, so that a query never has to guess: `no_certificate`, `identity_in_use`.

use std::fmt::{self, Debug, Write};

use prometheus_client::encoding::{EncodeLabelValue, LabelValueEncoder};

/// A variant of an enum by its name: `NoCertificate` becomes `no_certificate`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Variant<T>(pub T);

impl<T: Debug> EncodeLabelValue for Variant<T> {
    fn encode(&self, encoder: &mut LabelValueEncoder<'_>) -> fmt::Result {
        let mut name = Snake {
            encoder,
            begun: false,
        };
        write!(name, "{:?}", self.0)
    }
}

/// A reason of the wire contract: `TOKEN_EXPIRED` becomes `token_expired`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ReasonName(pub Option<&'static str>);

impl EncodeLabelValue for ReasonName {
    fn encode(&self, encoder: &mut LabelValueEncoder<'_>) -> fmt::Result {
        let name = self.0.unwrap_or("none");
        name.chars()
            .try_for_each(|letter| encoder.write_char(letter.to_ascii_lowercase()))
    }
}

/// Writes camel case as snake case.
struct Snake<'a, 'b> {
    encoder: &'a mut LabelValueEncoder<'b>,
    begun: bool,
}

impl Write for Snake<'_, '_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for letter in text.chars() {
            if letter.is_ascii_uppercase() && self.begun {
                self.encoder.write_char('_')?;
            }
            self.begun = true;
            self.encoder.write_char(letter.to_ascii_lowercase())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use prometheus_client::{
        encoding::text::encode,
        metrics::{counter::Counter, family::Family},
        registry::Registry,
    };

    use super::*;

    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    enum Code {
        Ok,
        FailedPrecondition,
    }

    #[test]
    fn names_of_variants_and_reasons_are_in_snake_case() {
        type Labels = [(&'static str, Variant<Code>); 1];
        type Reasons = [(&'static str, ReasonName); 1];
        let (codes, reasons) = (
            Family::<Labels, Counter>::default(),
            Family::<Reasons, Counter>::default(),
        );
        for code in [Code::Ok, Code::FailedPrecondition] {
            codes.get_or_create(&[("code", Variant(code))]).inc();
        }
        for reason in [None, Some("IDENTITY_IN_USE")] {
            reasons
                .get_or_create(&[("reason", ReasonName(reason))])
                .inc();
        }
        let mut registry = Registry::default();
        registry.register("codes", "", codes);
        registry.register("reasons", "", reasons);
        let mut page = String::new();
        encode(&mut page, &registry).expect("a page");
        for value in ["ok", "failed_precondition", "none", "identity_in_use"] {
            assert!(page.contains(&format!("=\"{value}\"}} 1")), "{page}");
        }
    }
}
