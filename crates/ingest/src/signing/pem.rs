//! RSA keys as PEM text: reads private keys in PKCS#8 and PKCS#1 and public keys in SPKI, writes PKCS#8.
//!
//! The errors name what the file contains instead, because the most common mistakes are the wrong file (a certificate, a
//! public key) and the wrong kind of key.

use aws_lc_rs::{
    encoding::{AsDer, Pkcs8V1Der},
    error::Unspecified,
    rsa::{KeyPair, KeySize},
};
use base64::{Engine, prelude::BASE64_STANDARD};
use rustls_pki_types::pem::{PemObject, SectionKind};
use x509_parser::{prelude::FromDer, public_key, x509::SubjectPublicKeyInfo};
use zeroize::Zeroizing;

use super::{PublicKey, SigningKey};

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyPemError {
    #[error("is empty")]
    Empty,
    #[error("holds no PEM private key: its first line should be -----BEGIN PRIVATE KEY-----")]
    NotPem,
    #[error("is damaged or cut short: its PEM text does not decode")]
    Damaged,
    #[error("holds a certificate, not a private key")]
    Certificate,
    #[error("holds a public key, not a private key")]
    PublicKey,
    #[error(
        "holds no single public key of the form -----BEGIN PUBLIC KEY-----, as `openssl rsa -pubout` writes it"
    )]
    NotSpki,
    #[error(
        "holds an encrypted key: the service has no passphrase, so store it decrypted, with mode 0600"
    )]
    Encrypted,
    #[error("holds a key of another kind: RS256 needs an RSA key")]
    NotRsa,
    #[error("holds {0} private keys: exactly one is expected")]
    Several(usize),
    #[error("holds an RSA key of the wrong size or form: 2048 to 8192 bits are accepted ({0})")]
    Rejected(String),
}

/// Reads the single RSA private key in `text`.
pub fn parse(text: &[u8]) -> Result<SigningKey, KeyPemError> {
    let text = text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(text);
    if text.trim_ascii().is_empty() {
        return Err(KeyPemError::Empty);
    }
    let shown = String::from_utf8_lossy(text);
    if shown.contains("BEGIN ENCRYPTED PRIVATE KEY") || shown.contains("Proc-Type: 4,ENCRYPTED") {
        return Err(KeyPemError::Encrypted);
    }
    let sections = sections(text)?;
    let mut keys = sections.iter().filter(|(kind, _)| is_private_key(*kind));
    match (keys.next(), keys.count()) {
        (Some((kind, der)), 0) => parse_der(*kind, der),
        (Some(_), others) => Err(KeyPemError::Several(others + 1)),
        (None, _) => Err(explain_missing_key(&shown, &sections)),
    }
}

/// Reads the single RSA public key in `text`, as `openssl rsa -pubout` writes it.
pub fn parse_public(text: &[u8]) -> Result<PublicKey, KeyPemError> {
    let mut sections = sections(text)?.into_iter();
    let (Some((SectionKind::PublicKey, der)), None) = (sections.next(), sections.next()) else {
        return Err(KeyPemError::NotSpki);
    };
    let (_, key) = SubjectPublicKeyInfo::from_der(&der).map_err(|_| KeyPemError::Damaged)?;
    let Ok(public_key::PublicKey::RSA(key)) = key.parsed() else {
        return Err(KeyPemError::NotRsa);
    };
    let [n, e] = [key.modulus, key.exponent].map(without_leading_zeros);
    match n.len() * 8 {
        2048..=8192 => Ok(PublicKey::new(n.to_vec(), e.to_vec())),
        bits => Err(KeyPemError::Rejected(format!("{bits} bits"))),
    }
}

fn without_leading_zeros(number: &[u8]) -> &[u8] {
    let zeros = number.iter().take_while(|byte| **byte == 0).count();
    &number[zeros..]
}

/// Generates a 2048-bit key, and returns it as PEM text and parsed.
pub fn generate() -> Result<(Zeroizing<String>, SigningKey), Unspecified> {
    let pair = KeyPair::generate(KeySize::Rsa2048)?;
    let der: Pkcs8V1Der<'_> = pair.as_der()?;
    Ok((encode(der.as_ref()), SigningKey::new(pair)))
}

type Section = (SectionKind, Zeroizing<Vec<u8>>);

fn sections(text: &[u8]) -> Result<Vec<Section>, KeyPemError> {
    <(SectionKind, Vec<u8>)>::pem_slice_iter(text)
        .map(|section| section.map(|(kind, der)| (kind, Zeroizing::new(der))))
        .collect::<Result<_, _>>()
        .map_err(|_| KeyPemError::Damaged)
}

fn is_private_key(kind: SectionKind) -> bool {
    matches!(
        kind,
        SectionKind::PrivateKey | SectionKind::RsaPrivateKey | SectionKind::EcPrivateKey
    )
}

fn parse_der(kind: SectionKind, der: &[u8]) -> Result<SigningKey, KeyPemError> {
    let pair = match kind {
        SectionKind::RsaPrivateKey => KeyPair::from_der(der),
        SectionKind::PrivateKey if !names_rsa(der) => return Err(KeyPemError::NotRsa),
        SectionKind::PrivateKey => KeyPair::from_pkcs8(der),
        _ => return Err(KeyPemError::NotRsa),
    };
    pair.map(SigningKey::new)
        .map_err(|rejected| KeyPemError::Rejected(rejected.to_string()))
}

/// Whether the algorithm of a PKCS#8 structure, which is near its start, is rsaEncryption.
fn names_rsa(der: &[u8]) -> bool {
    const RSA_ENCRYPTION: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, 0x01];
    let head = &der[..der.len().min(40)];
    head.windows(RSA_ENCRYPTION.len())
        .any(|window| window == RSA_ENCRYPTION)
}

fn explain_missing_key(text: &str, sections: &[Section]) -> KeyPemError {
    let is_certificate = |(kind, _): &Section| *kind == SectionKind::Certificate;
    if sections.iter().any(is_certificate) {
        KeyPemError::Certificate
    } else if text.contains("PUBLIC KEY-----") {
        KeyPemError::PublicKey
    } else if text.contains("PRIVATE KEY-----") {
        KeyPemError::Damaged
    } else {
        KeyPemError::NotPem
    }
}

fn encode(der: &[u8]) -> Zeroizing<String> {
    let body = Zeroizing::new(BASE64_STANDARD.encode(der));
    let mut pem = Zeroizing::new(String::with_capacity(body.len() + body.len() / 64 + 64));
    pem.push_str("-----BEGIN PRIVATE KEY-----\n");
    for line in body.as_bytes().chunks(64) {
        pem.push_str(&String::from_utf8_lossy(line));
        pem.push('\n');
    }
    pem.push_str("-----END PRIVATE KEY-----\n");
    pem
}

#[cfg(test)]
mod tests {
    use aws_lc_rs::{encoding::PublicKeyX509Der, signature::KeyPair as _};

    use super::*;

    fn refused(text: &str) -> KeyPemError {
        parse(text.as_bytes()).expect_err("this text is no usable key")
    }

    #[test]
    fn a_generated_key_is_read_with_any_line_ends_and_a_byte_order_mark() {
        let (pem, key) = generate().unwrap();
        assert_eq!(key.bits(), 2048);
        for text in [
            pem.to_string(),
            pem.replace('\n', "\r\n"),
            format!("\u{feff}{}", *pem),
        ] {
            assert_eq!(parse(text.as_bytes()).unwrap().kid(), key.kid());
        }
    }

    #[test]
    fn the_error_names_what_the_file_contains_instead() {
        let ec = rcgen::KeyPair::generate().unwrap();
        let certificate = rcgen::generate_simple_self_signed(["x".to_owned()])
            .unwrap()
            .cert
            .pem();
        assert_eq!(refused(""), KeyPemError::Empty);
        assert_eq!(refused(" \n"), KeyPemError::Empty);
        assert_eq!(refused("hello"), KeyPemError::NotPem);
        assert_eq!(refused(&ec.serialize_pem()), KeyPemError::NotRsa);
        assert_eq!(refused(&certificate), KeyPemError::Certificate);
        assert_eq!(refused(&ec.public_key_pem()), KeyPemError::PublicKey);
        let encrypted =
            "-----BEGIN ENCRYPTED PRIVATE KEY-----\nAAAA\n-----END ENCRYPTED PRIVATE KEY-----\n";
        assert_eq!(refused(encrypted), KeyPemError::Encrypted);
        let (pem, _) = generate().unwrap();
        assert_eq!(refused(&pem.repeat(2)), KeyPemError::Several(2));
    }

    #[test]
    fn a_public_key_is_read_from_the_form_of_openssl() {
        let (_, key) = generate().unwrap();
        let spki: PublicKeyX509Der<'_> = key.pair.public_key().as_der().unwrap();
        let pem = |der: &[u8]| {
            let body = BASE64_STANDARD.encode(der);
            format!("-----BEGIN PUBLIC KEY-----\n{body}\n-----END PUBLIC KEY-----\n")
        };
        let text = pem(spki.as_ref());
        assert_eq!(parse_public(text.as_bytes()).unwrap().kid(), key.kid());
        let ec = rcgen::KeyPair::generate().unwrap().public_key_pem();
        for (text, expected) in [
            (text.repeat(2), KeyPemError::NotSpki),
            (pem(&spki.as_ref()[..200]), KeyPemError::Damaged),
            (ec, KeyPemError::NotRsa),
            (String::new(), KeyPemError::NotSpki),
        ] {
            let refused = parse_public(text.as_bytes()).expect_err("no single RSA key");
            assert_eq!(refused, expected, "{text}");
        }
    }

    #[test]
    fn a_truncated_key_is_refused() {
        let (pem, _) = generate().unwrap();
        for keep in (1..pem.len() - 2).step_by(37) {
            parse(&pem.as_bytes()[..keep]).expect_err("a truncated key");
        }
    }
}
