//! Compiles the `.proto` files with protox, which needs no `protoc`, and writes the
//! descriptor set for server reflection.

use std::{env, error::Error, fs, path::PathBuf};

use prost::Message;

fn main() -> Result<(), Box<dyn Error>> {
    let root = PathBuf::from(env::var("CARGO_MANIFEST_DIR")?).join("../../proto");
    println!("cargo::rerun-if-changed={}", root.display());

    let files = [
        "svc/ingest/v1/ingest.proto",
        "svc/ingest/queue/v1/queue.proto",
    ];
    let descriptors = protox::compile(files, [&root])?;
    let out = PathBuf::from(env::var("OUT_DIR")?);
    fs::write(out.join("descriptors.bin"), descriptors.encode_to_vec())?;
    tonic_prost_build::configure()
        .codec_path("crate::FrugalCodec")
        .compile_fds(descriptors)?;
    Ok(())
}
