//! Within v1 the wire contract changes only by addition.
//!
//! `proto/baseline/ingest.v1.txt` holds one line for each name and number that was
//! ever published. A line that is gone, or says something else, is a breaking
//! change; a new one must be added to the file, which this test's message gives.

use std::collections::BTreeSet;

use prost::Message;
use prost_types::{
    DescriptorProto, EnumDescriptorProto, FieldDescriptorProto, FileDescriptorSet,
    ServiceDescriptorProto, field_descriptor_proto::Label,
};

const BASELINE: &str = include_str!("../../../proto/baseline/ingest.v1.txt");

#[test]
fn the_contract_changes_only_by_addition() {
    let published: BTreeSet<&str> = BASELINE.lines().filter(|line| !line.is_empty()).collect();
    let now = contract();
    let now: BTreeSet<&str> = now.iter().map(String::as_str).collect();
    let broken: Vec<_> = published.difference(&now).collect();
    assert!(
        broken.is_empty(),
        "published names or numbers were changed or removed: {broken:#?}"
    );
    let added: Vec<_> = now.difference(&published).copied().collect();
    assert!(
        added.is_empty(),
        "add to proto/baseline/ingest.v1.txt:\n{}",
        added.join("\n")
    );
}

#[test]
fn a_change_of_number_or_type_is_noticed() {
    let line = "message Sample: 1 uint64 seq";
    assert!(contract().iter().any(|known| known == line));
    assert!(BASELINE.lines().any(|known| known == line));
}

/// Every published name and number, a line each.
fn contract() -> BTreeSet<String> {
    let set = FileDescriptorSet::decode(svc_proto::DESCRIPTORS).expect("compiled-in descriptors");
    let ours = set
        .file
        .iter()
        .filter(|file| file.package() == "svc.ingest.v1");
    ours.flat_map(|file| {
        let messages = file
            .message_type
            .iter()
            .flat_map(|message| message_lines("", message));
        let enums = file.enum_type.iter().flat_map(enum_lines);
        let services = file.service.iter().flat_map(service_lines);
        messages.chain(enums).chain(services).collect::<Vec<_>>()
    })
    .collect()
}

fn message_lines(prefix: &str, message: &DescriptorProto) -> Vec<String> {
    let name = format!("{prefix}{}", message.name());
    let fields = message
        .field
        .iter()
        .map(|field| format!("message {name}: {}", field_line(message, field)));
    let nested = message
        .nested_type
        .iter()
        .flat_map(|nested| message_lines(&format!("{name}."), nested));
    fields.chain(nested).collect()
}

fn field_line(message: &DescriptorProto, field: &FieldDescriptorProto) -> String {
    let kind = match field.type_name() {
        "" => format!("{:?}", field.r#type()).to_lowercase(),
        name => name.trim_start_matches('.').to_owned(),
    };
    let repeated = if field.label() == Label::Repeated {
        "repeated "
    } else {
        ""
    };
    let oneof = field
        .oneof_index
        .and_then(|index| message.oneof_decl.get(usize::try_from(index).ok()?));
    let oneof = oneof
        .map(|oneof| format!(" in oneof {}", oneof.name()))
        .unwrap_or_default();
    format!(
        "{} {repeated}{kind} {}{oneof}",
        field.number(),
        field.name()
    )
}

fn enum_lines(kind: &EnumDescriptorProto) -> Vec<String> {
    let line = |value: &prost_types::EnumValueDescriptorProto| {
        format!("enum {}: {} {}", kind.name(), value.number(), value.name())
    };
    kind.value.iter().map(line).collect()
}

fn service_lines(service: &ServiceDescriptorProto) -> Vec<String> {
    let stream = |streaming| if streaming { "stream " } else { "" };
    let line = |method: &prost_types::MethodDescriptorProto| {
        format!(
            "service {}: {}({}{}) returns ({}{})",
            service.name(),
            method.name(),
            stream(method.client_streaming()),
            method.input_type().trim_start_matches('.'),
            stream(method.server_streaming()),
            method.output_type().trim_start_matches('.')
        )
    };
    service.method.iter().map(line).collect()
}
