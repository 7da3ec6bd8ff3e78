//! TLS, passwords and permissions.

use std::path::Path;
use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use tempfile::TempDir;
use weir_broker::Operation::{Describe, Read, Write};
use weir_broker::{Broker, Guard, LEAST_RIGHTS, Resource};
use weir_log::{Brokers, Connection, KafkaLog, Mechanism, Obstacle, Properties, Sasl, Tls, examine};
use weir_merge::{Commit, Log, Plan, Quarantined};

use super::fleet::{PATIENCE, brokers, open, until, until_shown};
use super::topics::assigned;

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
        users: ["owner", "stranger", "agent", "merge"].map(user).into(),
    };
    Broker::start_with(Some(&guard), &LEAST_RIGHTS)
}

/// An unsigned JSON Web Token.
fn token(user: &str, expires: i64) -> String {
    let claims = format!(
        "{{\"sub\": \"{user}\", \"iat\": {}, \"exp\": {expires}}}",
        expires - 7200
    );
    format!(
        "{}.{}.",
        BASE64_URL_SAFE_NO_PAD.encode("{\"alg\": \"none\"}"),
        BASE64_URL_SAFE_NO_PAD.encode(&claims)
    )
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
        timeout: PATIENCE,
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
    // On a busy machine a client may give up before it has heard the broker's reason. The next one hears it.
    let obstacle = |brokers: Brokers, expected: Obstacle| {
        let connection = Connection::Kafka(impatient(brokers));
        until(&format!("{expected:?} is found"), || {
            let error = examine(&connection).unwrap_err();
            println!("{error}");
            Obstacle::of(&error) == expected
        });
    };
    let expect = |brokers: Brokers, what: &str| {
        let brokers = impatient(brokers);
        until(&format!("{what:?} is in the error"), || {
            let error = open(&brokers).append(1, 1, b"x").unwrap_err().to_string();
            println!("{error}");
            assert!(!error.contains("'s password"), "{error}");
            error.contains(what)
        });
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

/// The rights in the table of docs/fleet.md are enough, and an agent can change neither the plan nor anything of the merges.
#[test]
fn agents_and_merges_need_only_the_documented_rights() {
    let directory = TempDir::new().unwrap();
    let broker = guarded(directory.path());
    let settings = |user: &str| Brokers {
        tls: Some(Tls {
            authorities: Some(directory.path().join("authority.pem")),
            certificate: None,
        }),
        sasl: Some(Sasl {
            mechanism: Mechanism::ScramSha256,
            user: user.to_owned(),
            password: format!("{user}'s password"),
            token_file: None,
        }),
        ..brokers(broker.guarded_address(), "least", 2)
    };
    // A user with all rights makes the topics and the plan, once.
    assigned(&mut open(&settings("owner")), 2);
    let sums = |offset| Commit {
        snapshot: b"sums".to_vec(),
        offset,
        ..Commit::default()
    };
    let store = |user: &str, offset| {
        let mut output = KafkaLog::open_for_output(&settings(user), "scrape").unwrap();
        let generation = assigned(&mut output, 2);
        let mut generations = [generation, generation - 1].into_iter();
        assert!(generations.any(|generation| output.commit(0, generation, &sums(offset)).is_ok()));
        assert_eq!(output.committed(0).unwrap(), Some((b"sums".to_vec(), offset)));
    };
    store("owner", 1);
    broker.allow(
        "agent",
        &[
            (Resource::Topic, "least", &[Write, Describe]),
            (Resource::Topic, "least.control", &[Read, Describe]),
        ],
    );
    broker.allow_merge("merge", "least", "least-merge");
    // The agent has a token, the merge a password, a property and a name that outlives it.
    let token_file = directory.path().join("token");
    let hour = weir_log::unix_milliseconds() / 1000 + 3600;
    std::fs::write(&token_file, token("agent", hour)).unwrap();
    let mut agent = open(&Brokers {
        sasl: Some(Sasl {
            mechanism: Mechanism::OAuthBearer,
            token_file: Some(token_file),
            ..Sasl::default()
        }),
        ..settings("agent")
    });
    until("the brokers know the rights", || {
        agent.append(0, 1, b"a record").is_ok()
    });
    assert_eq!(agent.plan().unwrap(), Plan::new(2));
    let refused = agent.announce(1, 3).unwrap_err().to_string();
    assert!(refused.contains("uthorization failed"), "{refused}");
    let refused = open(&settings("agent")).assignments().unwrap_err().to_string();
    assert!(refused.contains("uthorization failed"), "{refused}");

    let mut merge = open(&Brokers {
        instance: Some("merge-0".to_owned()),
        properties: Properties(vec![("client.rack".to_owned(), "a".to_owned())]),
        ..settings("merge")
    });
    let generation = assigned(&mut merge, 2);
    assert_eq!(merge.fetch(0, 0, 1).unwrap().messages[0].bytes, b"a record");
    let commit = Commit {
        results: vec![b"a result".to_vec()],
        quarantined: vec![Quarantined {
            offset: 0,
            reason: "a reason".to_owned(),
            bytes: b"a record".to_vec(),
        }],
        snapshot: b"a snapshot".to_vec(),
        offset: 1,
    };
    assert_eq!(merge.committed(0).unwrap(), None);
    let generations = [generation, generation - 1];
    assert!(
        generations
            .iter()
            .any(|generation| merge.commit(0, *generation, &commit).is_ok())
    );
    let open_brokers = Brokers {
        addresses: vec![broker.address()],
        tls: None,
        sasl: None,
        ..settings("merge")
    };
    until_shown(&open_brokers, "results", 0);
    let mut output = KafkaLog::open_for_output(&settings("merge"), "file").unwrap();
    let generation = assigned(&mut output, 2);
    assert_eq!(output.results(0, 0, 1).unwrap()[0].1, b"a result");
    assert!(
        [generation, generation - 1]
            .iter()
            .any(|generation| { output.record_results_sent(0, *generation, 1).is_ok() })
    );
    store("merge", 2);
    drop(output);

    // As `weir merge replay` does.
    let mut replay = KafkaLog::open_for_output(&settings("merge"), "file").unwrap();
    assert_eq!(replay.results_near(0, 0).unwrap(), 0);
    assert_eq!(replay.position(0).unwrap(), 1);
    until("the group has no members", || replay.rewind(0, 0).is_ok());
    assert_eq!(replay.position(0).unwrap(), 0);

    // As `weir merge quarantine put-back` does, with the right to write records.
    let found = merge.quarantined(0).unwrap();
    assert_eq!(found, commit.quarantined);
    let refused = merge.append(0, 1, &found[0].bytes).unwrap_err().to_string();
    assert!(refused.contains("uthorization failed"), "{refused}");
    broker.allow("merge", &[(Resource::Topic, "least", &[Write])]);
    until("the brokers know the right", || {
        merge.append(0, 1, &found[0].bytes).is_ok()
    });
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
