//! Data about senders from the kernel, container runtimes and the kubelet.

use weir_origin::cgroup::{container_of_groups, is_container_id};
use weir_origin::{Cardinality, Description};

/// The lines of a `cgroup` file: a found id is in them and has the form of an id, and is found in any order of equivalent lines.
pub fn cgroup(bytes: &[u8]) {
    // At the end of the text it would belong to the path, before a further line to the line's end.
    let text = String::from_utf8_lossy(bytes).replace('\r', "");
    let found = container_of_groups(&text);
    if let Some(container) = found {
        assert!(is_container_id(container), "{container:?}");
        assert!(text.contains(container));
    }
    let twice = format!("{text}\n{text}");
    assert_eq!(container_of_groups(&twice), found);
    // The name of a process may contain anything, even the fields that precede a start time.
    let stat = format!("7 ({text}) S 1 7 7 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 4711 1 1");
    assert_eq!(weir_origin::check::start_time(&stat), Some(4711));
}

/// The answers of Docker and the kubelet, and a file of tags: the first byte says which. They are read or refused, and
/// their tags are valid in a message.
pub fn origin(bytes: &[u8]) {
    let Some((&which, json)) = bytes.split_first() else {
        return;
    };
    let described = match which % 3 {
        0 => weir_origin::check::docker(json),
        1 => weir_origin::check::kubelet(json),
        _ => weir_origin::check::file(json),
    };
    for Description { tags, .. } in described.unwrap_or_default() {
        for tag in tags.up_to(Cardinality::High) {
            assert!(
                !tag.is_empty() && !tag.contains([',', '|', '\n', '\r']),
                "{tag:?}"
            );
            assert!(weir_protocol::special_tag(tag).is_none(), "{tag:?}");
        }
    }
}
