//! Variables that name files: the files are read too, so that a missing certificate is reported together
//! with a mistyped port.

use std::path::PathBuf;

use svc_common::{settings::Reader, tls::TlsPair};
use svc_front::listener::ClientCa;

use super::parse;
use crate::signing::{self, PublicKey};

/// The certificate and the key that two variables name. Either may be wrong, or they do not belong together.
pub(super) fn tls_pair(
    reader: &mut Reader<'_>,
    certificate: &'static str,
    key: &'static str,
) -> Option<TlsPair> {
    let certificate_file = reader.value(certificate, parse::path);
    let key_file = reader.value(key, parse::path);
    TlsPair::read(reader, (certificate, &certificate_file?), (key, &key_file?))
}

pub(super) fn client_ca(reader: &mut Reader<'_>, name: &'static str) -> Option<Option<ClientCa>> {
    let Some(path) = reader.text(name)? else {
        return Some(None);
    };
    let loaded = ClientCa::load(path.as_ref());
    reader.or_problem(name, loaded).map(Some)
}

/// The path of the signing key. The file may be missing, because the first start creates it; otherwise it must be
/// valid.
pub(super) fn key_file(reader: &mut Reader<'_>, name: &'static str) -> Option<PathBuf> {
    let path = reader.value(name, parse::path)?;
    let checked = signing::check(&path);
    reader.or_problem(name, checked).map(|()| path)
}

/// The public keys in the files that a list of paths names.
pub(super) fn extra_keys(reader: &mut Reader<'_>, name: &'static str) -> Option<Vec<PublicKey>> {
    let paths = reader.optional(name, parse::paths)?;
    let keys = paths.unwrap_or_default().into_iter().map(|path| {
        let read = signing::read_public(&path);
        reader.or_problem(name, read)
    });
    keys.collect::<Vec<_>>().into_iter().collect()
}
