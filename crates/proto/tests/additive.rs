//! Within v1 the wire contracts change only by addition.
//!
//! `proto/baseline/` has one line for each name and number that was ever published. A
//! removed or changed line is a breaking change. A new line must be added to the file; the
//! test's message contains it.

use std::collections::BTreeSet;

use prost::Message;
use prost_types::{
    DescriptorProto, EnumDescriptorProto, FieldDescriptorProto, FileDescriptorSet,
    ServiceDescriptorProto, field_descriptor_proto::Label,
};

const AGENTS: Contract = Contract {
    package: "svc.ingest.v1",
    file: "proto/baseline/ingest.v1.txt",
    published: include_str!("../../../proto/baseline/ingest.v1.txt"),
};
const QUEUE: Contract = Contract {
    package: "svc.ingest.queue.v1",
    file: "proto/baseline/queue.v1.txt",
    published: include_str!("../../../proto/baseline/queue.v1.txt"),
};

struct Contract {
    package: &'static str,
    file: &'static str,
    published: &'static str,
}

#[test]
fn the_agents_contract_changes_only_by_addition() {
    AGENTS.assert_additive();
}

#[test]
fn the_queues_contract_changes_only_by_addition() {
    QUEUE.assert_additive();
}

#[test]
fn the_lines_contain_the_number_and_the_type() {
    for (contract, line) in [
        (AGENTS, "message Sample: 1 uint64 seq"),
        (QUEUE, "message Range: 4 uint64 last_seq"),
    ] {
        assert!(contract.compiled().iter().any(|known| known == line));
        assert!(contract.published.lines().any(|known| known == line));
    }
}

impl Contract {
    fn assert_additive(&self) {
        let published = self.published.lines().filter(|line| !line.is_empty());
        let published: BTreeSet<&str> = published.collect();
        let compiled = self.compiled();
        let compiled: BTreeSet<&str> = compiled.iter().map(String::as_str).collect();
        let broken: Vec<_> = published.difference(&compiled).collect();
        assert!(
            broken.is_empty(),
            "published names or numbers were changed or removed: {broken:#?}"
        );
        let added: Vec<_> = compiled.difference(&published).copied().collect();
        assert!(
            added.is_empty(),
            "add to {}:\n{}",
            self.file,
            added.join("\n")
        );
    }

    /// One line for each name and number of the compiled contract.
    fn compiled(&self) -> BTreeSet<String> {
        let set = FileDescriptorSet::decode(svc_proto::DESCRIPTORS);
        let set = set.expect("compiled-in descriptors");
        let ours = set
            .file
            .iter()
            .filter(|file| file.package() == self.package);
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
    let is_optional = field.proto3_optional();
    let label = match field.label() {
        Label::Repeated => "repeated ",
        _ if is_optional => "optional ",
        _ => "",
    };
    // The compiler puts an optional field into a oneof of its own.
    let index = field.oneof_index.filter(|_| !is_optional);
    let oneof = index.and_then(|index| message.oneof_decl.get(usize::try_from(index).ok()?));
    let oneof = oneof
        .map(|oneof| format!(" in oneof {}", oneof.name()))
        .unwrap_or_default();
    format!("{} {label}{kind} {}{oneof}", field.number(), field.name())
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
