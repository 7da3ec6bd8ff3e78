//! Payloads from a user's file.

use weir_load::own::OwnPayload;
use weir_load::profile::{Profile, Transport};

/// The packets of a file with this content, with their messages.
fn read(content: &str, packet_size: &str, transport: Transport) -> Result<Vec<(String, u32)>, String> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("payload");
    std::fs::write(&path, content).unwrap();
    let profile = Profile::from_yaml(&format!(
        "{{payload: file, file: payload, packet_size: {packet_size}}}"
    ))
    .unwrap();
    let payload = OwnPayload::read(&path, &profile, transport).map_err(|error| error.to_string())?;
    let packets = payload.packets.into_iter();
    Ok(packets
        .map(|(bytes, messages)| (String::from_utf8(bytes).unwrap(), messages))
        .collect())
}

fn owned(packets: &[(&str, u32)]) -> Vec<(String, u32)> {
    packets
        .iter()
        .map(|(text, messages)| ((*text).to_owned(), *messages))
        .collect()
}

#[test]
fn packets_have_as_many_lines_as_fit() {
    let lines = |content: &str| read(content, "16", Transport::Udp);
    let expected = [("a:1|c\nb:2|c", 2), ("longer.name:3|c", 1)];
    assert_eq!(lines("a:1|c\n\nb:2|c\nlonger.name:3|c\n"), Ok(owned(&expected)));
    let error = lines("a:1|c\nmuch.longer.name:3|c").unwrap_err();
    assert!(error.contains("line 2: 20 bytes, and packets have 16"), "{error}");
    assert!(lines("\n\n").unwrap_err().contains("nothing to send"));
}

#[test]
fn requests_are_separated_and_get_their_length() {
    let requests = |content: &str| read(content, "64 KiB", Transport::Http);
    let text = "# first\nPOST /in HTTP/1.1\nContent-Type: text/plain\nContent-Length: 99\n\none\ntwo\n\n###\nGET /health\n";
    let expected = [
        "POST /in HTTP/1.1\r\nContent-Type: text/plain\r\nContent-Length: 7\r\n\r\none\ntwo",
        "GET /health HTTP/1.1\r\n\r\n",
    ];
    assert_eq!(requests(text), Ok(owned(&expected.map(|text| (text, 1)))));
    let error = requests("GET /\n###\nPOST in\n").unwrap_err();
    assert!(
        error.contains("line 3") && error.contains("METHOD /path"),
        "{error}"
    );
    let error = requests("GET /\nbad header\n").unwrap_err();
    assert!(error.contains("line 2"), "{error}");
    assert!(requests("\0").unwrap_err().contains("requests are text"));
}

#[test]
fn only_the_payload_file_has_a_file() {
    for yaml in ["{payload: file}", "{file: x}"] {
        let error = Profile::from_yaml(yaml).unwrap_err().to_string();
        assert!(error.contains("names the file of payload file"), "{error}");
    }
}
