//! Builds the public keys of releases into the agent: the variable `SVC_RELEASE_KEYS` (PEM), or `packaging/release.pub`. A build
//! without either trusts no release, and says so.

use std::{env, fs, io, path::Path};

const PACKAGING: &str = "../../packaging";

fn main() -> io::Result<()> {
    println!("cargo::rerun-if-env-changed=SVC_RELEASE_KEYS");
    // The folder, because a file that is missing would run this for every build.
    println!("cargo::rerun-if-changed={PACKAGING}");
    let keys = match env::var("SVC_RELEASE_KEYS") {
        Ok(keys) => keys,
        Err(_) => match fs::read_to_string(Path::new(PACKAGING).join("release.pub")) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
            read => read?,
        },
    };
    let out = env::var("OUT_DIR").map_err(io::Error::other)?;
    fs::write(Path::new(&out).join("release.pub"), keys)
}
