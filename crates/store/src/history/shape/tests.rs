use serde_json::json;

use super::*;

/// A list of gauges, and of counters where a kind begins with "c".
pub(crate) fn shape(parts: &[(&str, &str)]) -> Shape {
    let parts = parts.iter().map(|(kind, name)| part(kind, name));
    named(parts.collect())
}

fn part(kind: &str, name: &str) -> Part<'static> {
    Part {
        kind: kind.to_owned().into(),
        name: name.to_owned().into(),
        device: None,
        fs_type: None,
        counter: kind.starts_with('c'),
    }
}

fn bytes(parts: &[Part<'_>]) -> Vec<u8> {
    let mut bytes = Vec::new();
    parts.iter().for_each(|part| part.write(&mut bytes));
    bytes
}

fn named(parts: Vec<Part<'static>>) -> Shape {
    Shape::stored(name_of(&bytes(&parts)), parts)
}

fn root() -> Part<'static> {
    Part {
        device: Some("/dev/sda1".into()),
        fs_type: Some("ext4".into()),
        ..part("disk_used", "/")
    }
}

#[test]
fn a_list_is_stored_as_json_and_read_back() {
    let parts = vec![root(), part("disk_total", "/"), part("c_reads", "sda")];
    let stored = json!([
        {"kind": "disk_used", "name": "/", "device": "/dev/sda1", "fs_type": "ext4"},
        {"kind": "disk_total", "name": "/"},
        {"kind": "c_reads", "name": "sda", "counter": true}
    ]);
    assert_eq!(json!(parts), stored);
    let read: Vec<Part<'static>> = serde_json::from_value(stored).unwrap();
    assert_eq!(read, parts);
}

/// The names are in databases.
#[test]
fn a_list_has_the_same_name_for_ever() {
    let list = named(vec![root(), part("c_reads", "sda")]);
    let first = b"\x09\0\0\0disk_used\x01\0\0\0/\x09\0\0\0/dev/sda1\x04\0\0\0ext4\0";
    let second = b"\x07\0\0\0c_reads\x03\0\0\0sda\xff\xff\xff\xff\xff\xff\xff\xff\x01";
    assert_eq!(bytes(&list.parts), [first.as_slice(), second].concat());
    let names = [list.name, shape(&[]).name].map(|name| name.to_string());
    let (long, empty) = (
        "9d198fa9-86b6-9328-099c-ed11608758ae",
        "e3b0c442-98fc-1c14-9afb-f4c8996fb924",
    );
    assert_eq!(names, [long, empty]);
}

#[test]
fn lists_that_differ_in_anything_have_different_names() {
    let of = |changed: fn(&mut Part<'static>)| {
        let mut part = part("a", "b");
        changed(&mut part);
        named(vec![part])
    };
    let lists = [
        of(|_| ()),
        of(|part| part.counter = true),
        of(|part| part.device = Some("".into())),
        of(|part| part.device = Some("x".into())),
        of(|part| part.fs_type = Some("x".into())),
        shape(&[("ab", "")]),
        shape(&[("", "ab")]),
        shape(&[("a", "b"), ("a", "b")]),
        shape(&[("a", "b"), ("a", "c")]),
        shape(&[("a", "c"), ("a", "b")]),
    ];
    let names: HashSet<Uuid> = lists.iter().map(|list| list.name).collect();
    assert_eq!(names.len(), lists.len());
}

#[test]
fn a_union_has_each_part_once_where_it_first_appears() {
    let one = shape(&[("a", "1"), ("b", "1"), ("a", "1")]);
    let two = shape(&[("b", "1"), ("b", "2"), ("a", "2")]);
    assert!(one.repeats && !two.repeats);
    let union = shape(&[("a", "1"), ("b", "1"), ("b", "2"), ("a", "2")]);
    assert_eq!(Shape::union([&one, &two]), union);
    assert_eq!(Shape::union([&two, &two]), two);
    let known = named(vec![root()]);
    assert_eq!(Shape::union([&known, &shape(&[("disk_used", "/")])]), known);
}

#[test]
fn a_union_is_bounded() {
    let names: Vec<String> = (0..3000).map(|n| n.to_string()).collect();
    let parts: Vec<_> = names.iter().map(|name| ("a", name.as_str())).collect();
    let union = Shape::union([&shape(&parts[..2000]), &shape(&parts[1000..])]);
    assert_eq!(union, shape(&parts[..MOST_PARTS]));
}

#[test]
fn a_disk_is_its_bytes_in_use_followed_by_their_total() {
    let (used, total) = (|name| ("disk_used", name), |name| ("disk_total", name));
    let list = [used("/"), total("/"), used("/a"), used("/b"), total("/c")];
    assert!(shape(&list).disks().eq([0]));
    assert_eq!(shape(&list[2..]).disks().count(), 0);
    let after = shape(&[used("/d"), used("/e"), total("/e")]);
    assert!(after.disks().eq([1]));
}
