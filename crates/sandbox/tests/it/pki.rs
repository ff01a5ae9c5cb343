//! Certificates as rustls sees them.

use std::{os::unix::fs::PermissionsExt, sync::Arc};

use rustls::{
    CertificateError, Error, RootCertStore,
    client::{WebPkiServerVerifier, danger::ServerCertVerifier},
    crypto::aws_lc_rs,
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime, pem::PemObject},
};
use svc_sandbox::{Authority, Identity};

const NAMES: [&str; 2] = ["ingest.example", "127.0.0.1"];

fn verify(root_pem: &str, identity: &Identity, name: &str) -> Result<(), Error> {
    let mut roots = RootCertStore::empty();
    roots
        .add(CertificateDer::from_pem_slice(root_pem.as_bytes()).unwrap())
        .unwrap();
    let provider = Arc::new(aws_lc_rs::default_provider());
    let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider);
    let leaf = CertificateDer::from(identity.cert_der.clone());
    let name = ServerName::try_from(name.to_owned()).unwrap();
    verifier
        .build()
        .unwrap()
        .verify_server_cert(&leaf, &[], &name, &[], UnixTime::now())
        .map(drop)
}

#[test]
fn an_authority_is_trusted_only_for_the_names_it_issued() {
    let authority = Authority::new("a test authority").unwrap();
    let server = authority.issue_server(&NAMES).unwrap();
    for name in NAMES {
        verify(authority.cert_pem(), &server, name).unwrap();
    }
    assert!(verify(authority.cert_pem(), &server, "elsewhere.example").is_err());
    let stranger = Authority::new("a test authority").unwrap();
    assert!(verify(stranger.cert_pem(), &server, NAMES[0]).is_err());
    let client = authority.issue_client("an agent").unwrap();
    assert!(verify(authority.cert_pem(), &client, NAMES[0]).is_err());
}

#[test]
fn a_self_signed_server_certificate_is_a_leaf_and_expires() {
    let server = Identity::server(&NAMES).unwrap();
    verify(&server.cert_pem, &server, NAMES[0]).unwrap();
    let expired = Identity::expired_server(&NAMES).unwrap();
    let refused = verify(&expired.cert_pem, &expired, NAMES[0]).unwrap_err();
    let Error::InvalidCertificate(reason) = refused else {
        panic!("{refused}")
    };
    assert!(
        matches!(reason, CertificateError::ExpiredContext { .. }),
        "{reason:?}"
    );
}

#[test]
fn a_written_pair_belongs_together_and_the_key_is_private() {
    let folder = tempfile::tempdir().unwrap();
    let identity = Identity::self_signed("an agent").unwrap();
    let (cert, key) = identity.write(folder.path(), "agent").unwrap();
    assert_eq!(
        std::fs::metadata(&key).unwrap().permissions().mode() & 0o777,
        0o600
    );
    let cert = CertificateDer::from_pem_file(cert).unwrap();
    let key = PrivateKeyDer::from_pem_file(key).unwrap();
    let signer = aws_lc_rs::sign::any_ecdsa_type(&key).unwrap();
    let certified = rustls::sign::CertifiedKey::new(vec![cert], signer);
    certified.keys_match().unwrap();
}
