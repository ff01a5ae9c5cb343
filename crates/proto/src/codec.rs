//! The codec of both ends: prost's, with small buffers.
//!
//! tonic's default allocates 8 KiB per direction of each stream. A heartbeat stream lives as
//! long as its agent, so that was a third of the memory of a connected agent. A report has
//! about 300 bytes and an acknowledgement about ten; the buffers grow for larger messages.

use std::marker::PhantomData;

use prost::Message;
use tonic::codec::{BufferSettings, Codec};
use tonic_prost::{ProstCodec, ProstDecoder, ProstEncoder};

const RECEIVING: usize = 512;
const SENDING: usize = 128;
/// The encoder yields its buffer once it holds this many bytes.
const FULL: usize = 32 * 1024;

#[derive(Clone, Copy, Debug)]
pub struct FrugalCodec<E, D>(PhantomData<(E, D)>);

impl<E, D> Default for FrugalCodec<E, D> {
    fn default() -> Self {
        Self(PhantomData)
    }
}

impl<E, D> Codec for FrugalCodec<E, D>
where
    E: Message + Send + 'static,
    D: Message + Default + Send + 'static,
{
    type Encode = E;
    type Decode = D;
    type Encoder = ProstEncoder<E>;
    type Decoder = ProstDecoder<D>;

    fn encoder(&mut self) -> Self::Encoder {
        ProstCodec::<E, D>::raw_encoder(BufferSettings::new(SENDING, FULL))
    }

    fn decoder(&mut self) -> Self::Decoder {
        ProstCodec::<E, D>::raw_decoder(BufferSettings::new(RECEIVING, FULL))
    }
}
