//! TLS, passwords and permissions.

use std::path::Path;
use std::time::Duration;

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use tempfile::TempDir;
use weir_broker::{Broker, Guard};
use weir_log::{Brokers, Connection, Mechanism, Obstacle, Properties, Sasl, Tls, examine};
use weir_merge::Log;

use super::fleet::{brokers, open};

/// A certificate authority, and a broker with TLS and passwords.
fn guarded(directory: &Path) -> Broker {
    let key = KeyPair::generate().unwrap();
    let mut authority = CertificateParams::new(Vec::new()).unwrap();
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    authority
        .distinguished_name
        .push(DnType::CommonName, "the authority of a test");
    let certificate = authority.self_signed(&key).unwrap();
    std::fs::write(directory.join("authority.pem"), certificate.pem()).unwrap();
    let issuer = Issuer::new(authority, key);
    let key = KeyPair::generate().unwrap();
    let certificate = CertificateParams::new(vec!["localhost".to_owned()])
        .unwrap()
        .signed_by(&key, &issuer)
        .unwrap();
    let user = |name: &str| (name.to_owned(), format!("{name}'s password"));
    let guard = Guard {
        certificate: certificate.pem(),
        key: key.serialize_pem(),
        users: vec![user("owner"), user("stranger")],
    };
    let authorizer = "org.apache.kafka.metadata.authorizer.StandardAuthorizer";
    Broker::start_with(
        Some(&guard),
        &[
            ("authorizer.class.name", authorizer),
            ("super.users", "User:ANONYMOUS;User:owner"),
        ],
    )
}

/// An unsigned JSON Web Token.
fn token(user: &str, expires: i64) -> String {
    let claims = format!(
        "{{\"sub\": \"{user}\", \"iat\": {}, \"exp\": {expires}}}",
        expires - 7200
    );
    format!("{}.{}.", base64("{\"alg\": \"none\"}"), base64(&claims))
}

/// With the alphabet of URLs, without padding.
fn base64(text: &str) -> String {
    let alphabet = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let bits: Vec<bool> = text
        .bytes()
        .flat_map(|byte| (0..8).rev().map(move |bit| byte >> bit & 1 == 1))
        .collect();
    let digit = |bits: &[bool]| {
        let value = (0..6).fold(0, |value, at| {
            value << 1 | usize::from(bits.get(at) == Some(&true))
        });
        alphabet[value] as char
    };
    bits.chunks(6).map(digit).collect()
}

#[test]
fn properties_reach_the_client_and_wrong_ones_are_named() {
    let with = |name: &str, value: &str| Brokers {
        properties: Properties(vec![(name.to_owned(), value.to_owned())]),
        ..brokers(weir_broker::shared(), "properties", 1)
    };
    open(&with("client.rack", "a")).append(0, 1, b"x").unwrap();
    let refused = |brokers: Brokers| {
        let error = weir_log::KafkaLog::open(&brokers).err().expect("an error");
        error.to_string()
    };
    let error = refused(with("no.such.property", "secret"));
    assert!(
        error.contains("no.such.property") && !error.contains("secret"),
        "{error}"
    );
    let error = refused(with("socket.timeout.ms", "soon"));
    assert!(
        error.contains("socket.timeout.ms") && !error.contains("soon"),
        "{error}"
    );
    let shown = format!("{:?}", with("ssl.key.password", "secret"));
    assert!(
        shown.contains("ssl.key.password") && !shown.contains("\"secret\""),
        "{shown}"
    );
}

#[test]
fn tls_passwords_and_rights() {
    let directory = TempDir::new().unwrap();
    let broker = guarded(directory.path());
    let settings = |user: &str, mechanism| Brokers {
        tls: Some(Tls {
            authorities: Some(directory.path().join("authority.pem")),
            certificate: None,
        }),
        sasl: Some(Sasl {
            mechanism,
            user: user.to_owned(),
            password: format!("{user}'s password"),
            token_file: None,
        }),
        timeout: Duration::from_secs(10),
        ..brokers(broker.guarded_address(), "guarded", 2)
    };
    for mechanism in [Mechanism::ScramSha256, Mechanism::ScramSha512] {
        let mut log = open(&settings("owner", mechanism));
        log.append(1, 1, b"a record").unwrap();
        assert!(!log.fetch(1, 0, 1).unwrap().messages.is_empty());
    }
    let token_file = directory.path().join("token");
    let with_token = || Brokers {
        sasl: Some(Sasl {
            mechanism: Mechanism::OAuthBearer,
            token_file: Some(token_file.clone()),
            ..Sasl::default()
        }),
        ..settings("", Mechanism::OAuthBearer)
    };
    let now = weir_log::unix_milliseconds() / 1000;
    std::fs::write(&token_file, token("owner", now + 3600)).unwrap();
    let mut log = open(&with_token());
    log.append(1, 1, b"a record").unwrap();
    assert!(!log.fetch(1, 0, 1).unwrap().messages.is_empty());
    let impatient = |brokers: Brokers| Brokers {
        timeout: Duration::from_secs(3),
        ..brokers
    };
    let obstacle = |brokers: Brokers, expected: Obstacle| {
        let error = examine(&Connection::Kafka(impatient(brokers))).unwrap_err();
        assert_eq!(Obstacle::of(&error), expected, "{error}");
    };
    let expect = |brokers: Brokers, what: &str| {
        let error = open(&impatient(brokers))
            .append(1, 1, b"x")
            .unwrap_err()
            .to_string();
        assert!(error.contains(what), "{what:?} is not in: {error}");
        assert!(!error.contains("'s password"), "{error}");
    };
    let mut wrong = settings("owner", Mechanism::ScramSha256);
    wrong.sasl.as_mut().unwrap().password = "wrong".to_owned();
    obstacle(wrong.clone(), Obstacle::Login);
    expect(wrong, "Authentication failed");
    obstacle(settings("stranger", Mechanism::ScramSha256), Obstacle::Rights);
    expect(
        settings("stranger", Mechanism::ScramSha256),
        "uthorization failed",
    );
    std::fs::write(&token_file, token("owner", now - 5)).unwrap();
    expect(with_token(), "the token has expired");
    std::fs::write(&token_file, "no token").unwrap();
    expect(with_token(), "uthentication");
    std::fs::remove_file(&token_file).unwrap();
    expect(with_token(), "sasl.token_file");
    // The system does not know the authority of the certificate.
    let mut unknown = settings("owner", Mechanism::ScramSha256);
    unknown.tls = Some(Tls::default());
    obstacle(unknown.clone(), Obstacle::Tls);
    expect(unknown, "certificate");
    let mut plain = settings("owner", Mechanism::ScramSha256);
    plain.tls = None;
    obstacle(plain.clone(), Obstacle::Tls);
    expect(plain, "Disconnected");
    assert!(!format!("{:?}", settings("owner", Mechanism::Plain)).contains("password\""));
}

#[test]
fn a_file_that_is_missing_is_named() {
    let mut settings = brokers("127.0.0.1:1".to_owned(), "x", 1);
    settings.tls = Some(Tls {
        authorities: Some("/there/is/no/file.pem".into()),
        certificate: None,
    });
    let error = weir_log::KafkaLog::open(&settings)
        .err()
        .expect("an error")
        .to_string();
    assert!(
        error.contains("/there/is/no/file.pem") || error.contains("ssl.ca.location"),
        "{error}"
    );
}
