//! Signed datagrams: who holds a secret may send, nobody else, and nothing counts twice.
//!
//! ```text
//! offset  bytes
//!      0      4  f5 57 53 01: never the beginning of UTF-8, then the format's version
//!      4      4  which key: the first bytes of SHA-256 of the secret
//!      8      8  sender: a random number, drawn anew by every process and for every socket
//!     16      8  sequence: goes up with every datagram of this sender
//!     24      8  time: milliseconds since 1970
//!     32      n  the packet, as it would be sent unsigned
//!   32+n     32  HMAC-SHA256 of everything before it
//! ```
//!
//! Numbers are little-endian, as in the length before a stream frame.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Mutex, PoisonError, RwLock};

use ring::{digest, hmac};

const MAGIC: [u8; 4] = [0xf5, b'W', b'S', 1];
const HEAD_BYTES: usize = 32;
const TAG_BYTES: usize = 32;

/// Bytes that a signature adds to a packet.
pub const SIGNATURE_BYTES: usize = HEAD_BYTES + TAG_BYTES;

/// Keys that are good at the same time: two while one takes the place of the other, and some more.
pub const SIGNING_KEYS_MAX: usize = 16;

/// Shorter secrets can be guessed.
const SECRET_BYTES_MIN: usize = 32;
const SECRET_BYTES_MAX: usize = 256;

/// Senders that are told apart. Each takes some two hundred bytes for as long as its datagrams would be in time.
const SENDERS_MAX: usize = 4096;

/// Sequence numbers behind a sender's highest that may still come, each once.
const SEQUENCES: u64 = 1024;
const WORDS: usize = (SEQUENCES / 64) as usize;

/// A full table is searched for senders to forget at most this often.
const SWEEP_MS: u64 = 1000;

/// A secret that sender and receiver share.
#[derive(Clone)]
pub struct SigningKey {
    id: [u8; 4],
    key: hmac::Key,
}

impl fmt::Debug for SigningKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SigningKey({:02x?})", self.id)
    }
}

/// Why a text holds no keys. Says nothing of the text itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SigningKeyError {
    /// No line holds one.
    Empty,
    /// A line is too short or too long for one.
    Length {
        line: usize,
        bytes: usize,
    },
    /// A line holds something that cannot be typed.
    Unprintable {
        line: usize,
    },
    /// Two lines cannot be told apart by their ids; most often they are the same.
    Twice {
        line: usize,
    },
    TooMany,
}

impl fmt::Display for SigningKeyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SigningKeyError::Empty => f.write_str("no line holds a key; `openssl rand -hex 32` makes one"),
            SigningKeyError::Length { line, bytes } => write!(
                f,
                "line {line}: a key has {SECRET_BYTES_MIN} to {SECRET_BYTES_MAX} characters, this one {bytes}"
            ),
            SigningKeyError::Unprintable { line } => {
                write!(f, "line {line}: a key is one word of printable ASCII characters")
            }
            SigningKeyError::Twice { line } => write!(f, "line {line}: the same key again"),
            SigningKeyError::TooMany => write!(f, "more than {SIGNING_KEYS_MAX} keys"),
        }
    }
}

impl std::error::Error for SigningKeyError {}

impl SigningKey {
    /// The keys of a file: one a line, empty lines and those that begin with `#` aside. The characters of the line are the
    /// secret.
    ///
    /// # Errors
    ///
    /// When there is none, or a line that is none.
    pub fn read(text: &str) -> Result<Vec<SigningKey>, SigningKeyError> {
        let mut keys: Vec<SigningKey> = Vec::new();
        for (number, line) in text.lines().enumerate() {
            let (line, secret) = (number + 1, line.trim());
            if secret.is_empty() || secret.starts_with('#') {
                continue;
            }
            let bytes = secret.len();
            if !secret.bytes().all(|byte| byte.is_ascii_graphic()) {
                return Err(SigningKeyError::Unprintable { line });
            }
            if !(SECRET_BYTES_MIN..=SECRET_BYTES_MAX).contains(&bytes) {
                return Err(SigningKeyError::Length { line, bytes });
            }
            let key = SigningKey::new(secret.as_bytes());
            if keys.iter().any(|other| other.id == key.id) {
                return Err(SigningKeyError::Twice { line });
            }
            keys.push(key);
        }
        match keys.len() {
            0 => Err(SigningKeyError::Empty),
            1..=SIGNING_KEYS_MAX => Ok(keys),
            _ => Err(SigningKeyError::TooMany),
        }
    }

    /// What its datagrams say which key it is: eight hexadecimal digits, no secret.
    pub fn id(&self) -> String {
        self.id.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    fn new(secret: &[u8]) -> Self {
        let digest = digest::digest(&digest::SHA256, secret);
        let mut id = [0; 4];
        id.copy_from_slice(&digest.as_ref()[..4]);
        Self {
            id,
            key: hmac::Key::new(hmac::HMAC_SHA256, secret),
        }
    }
}

/// Signs the datagrams of one sender.
#[derive(Clone, Debug)]
pub struct Signer {
    key: SigningKey,
    sender: u64,
    sequence: u64,
}

impl Signer {
    /// `sender`: a random number that no other signer of this key has.
    pub fn new(key: SigningKey, sender: u64) -> Self {
        Self {
            key,
            sender,
            sequence: 0,
        }
    }

    /// The datagram that carries a packet.
    pub fn sign(&mut self, packet: &[u8], unix_ms: u64) -> Vec<u8> {
        self.sequence += 1;
        let mut datagram = Vec::with_capacity(packet.len() + SIGNATURE_BYTES);
        datagram.extend_from_slice(&MAGIC);
        datagram.extend_from_slice(&self.key.id);
        for number in [self.sender, self.sequence, unix_ms] {
            datagram.extend_from_slice(&number.to_le_bytes());
        }
        datagram.extend_from_slice(packet);
        let tag = hmac::sign(&self.key.key, &datagram);
        datagram.extend_from_slice(tag.as_ref());
        datagram
    }
}

/// Why a datagram was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum SignatureFault {
    /// It is not signed, or cut.
    Missing,
    /// None of our keys signed it.
    UnknownKey,
    /// It was changed on its way, or signed by somebody who does not hold the key.
    Wrong,
    /// Its time is too far from ours or before our start, or too many later ones have come.
    Stale,
    /// It has come before.
    Replayed,
    /// More senders than can be told apart.
    NoRoom,
}

impl SignatureFault {
    pub const COUNT: usize = 6;
    pub const ALL: [SignatureFault; Self::COUNT] = [
        SignatureFault::Missing,
        SignatureFault::UnknownKey,
        SignatureFault::Wrong,
        SignatureFault::Stale,
        SignatureFault::Replayed,
        SignatureFault::NoRoom,
    ];

    /// As in the books.
    pub fn as_str(self) -> &'static str {
        match self {
            SignatureFault::Missing => "signature_missing",
            SignatureFault::UnknownKey => "signature_unknown_key",
            SignatureFault::Wrong => "signature_wrong",
            SignatureFault::Stale => "signature_stale",
            SignatureFault::Replayed => "signature_replayed",
            SignatureFault::NoRoom => "signature_no_room",
        }
    }
}

/// What the head of a genuine datagram says.
struct Head {
    key: [u8; 4],
    sender: u64,
    sequence: u64,
    time: u64,
}

/// The datagrams of one sender that have come.
struct Seen {
    highest: u64,
    /// Bit n: `highest - n` has come.
    bits: [u64; WORDS],
    /// The latest time of any.
    latest: u64,
}

impl Seen {
    fn new() -> Self {
        Self {
            highest: 0,
            bits: [0; WORDS],
            latest: 0,
        }
    }

    fn take(&mut self, sequence: u64) -> Result<(), SignatureFault> {
        if sequence > self.highest {
            self.shift(sequence - self.highest);
            self.highest = sequence;
        }
        let behind = self.highest - sequence;
        if behind >= SEQUENCES {
            return Err(SignatureFault::Stale);
        }
        let (word, bit) = ((behind / 64) as usize, 1 << (behind % 64));
        if self.bits[word] & bit != 0 {
            return Err(SignatureFault::Replayed);
        }
        self.bits[word] |= bit;
        Ok(())
    }

    fn shift(&mut self, by: u64) {
        if by >= SEQUENCES {
            self.bits = [0; WORDS];
            return;
        }
        let (words, bits) = ((by / 64) as usize, by % 64);
        for word in (0..WORDS).rev() {
            let from = |at: usize| at.checked_sub(words).map_or(0, |at| self.bits[at]);
            let low = from(word);
            let carried = word.checked_sub(1).map_or(0, from);
            self.bits[word] = if bits == 0 {
                low
            } else {
                low << bits | carried >> (64 - bits)
            };
        }
    }
}

struct Senders {
    /// By the id of their key and their number: places in the file change when it does.
    known: HashMap<([u8; 4], u64), Seen>,
    swept: u64,
}

/// Checks signed datagrams. Shared by all sockets that take them: one that came by one of them is not taken by another.
pub struct Verifier {
    keys: RwLock<Vec<SigningKey>>,
    window_ms: u64,
    started_ms: u64,
    senders: Mutex<Senders>,
}

impl fmt::Debug for Verifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Verifier({} ms)", self.window_ms)
    }
}

impl Verifier {
    /// `window_ms`: how far a sender's clock may be from ours, either way, its datagram's time on the way included.
    pub fn new(keys: Vec<SigningKey>, window_ms: u64, unix_ms: u64) -> Self {
        Self {
            keys: RwLock::new(keys),
            window_ms,
            started_ms: unix_ms,
            senders: Mutex::new(Senders {
                known: HashMap::new(),
                swept: 0,
            }),
        }
    }

    /// Other keys from now on. What has come with those that stay, or come back, is still not taken twice.
    pub fn replace_keys(&self, keys: Vec<SigningKey>) {
        *self.keys.write().unwrap_or_else(PoisonError::into_inner) = keys;
    }

    /// Senders that are told apart at the moment.
    pub fn senders(&self) -> usize {
        self.lock().known.len()
    }

    /// Memory in use, about.
    pub fn heap_bytes(&self) -> usize {
        self.lock().known.capacity() * (size_of::<(([u8; 4], u64), Seen)>() + 1)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Senders> {
        self.senders.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Where the packet of a genuine datagram is that has not come before.
    ///
    /// # Errors
    ///
    /// Why it is to be dropped.
    pub fn verify(&self, datagram: &[u8], unix_ms: u64) -> Result<std::ops::Range<usize>, SignatureFault> {
        let head = self.authenticate(datagram)?;
        let in_time = head.time.abs_diff(unix_ms) <= self.window_ms && head.time >= self.started_ms;
        if !in_time {
            return Err(SignatureFault::Stale);
        }
        self.lock().take(&head, unix_ms, self.window_ms)?;
        Ok(HEAD_BYTES..datagram.len() - TAG_BYTES)
    }

    fn authenticate(&self, datagram: &[u8]) -> Result<Head, SignatureFault> {
        if datagram.len() < SIGNATURE_BYTES || datagram[..4] != MAGIC {
            return Err(SignatureFault::Missing);
        }
        let keys = self.keys.read().unwrap_or_else(PoisonError::into_inner);
        let key = keys.iter().find(|key| key.id == datagram[4..8]);
        let key = key.ok_or(SignatureFault::UnknownKey)?;
        let (signed, tag) = datagram.split_at(datagram.len() - TAG_BYTES);
        hmac::verify(&key.key, signed, tag).map_err(|_| SignatureFault::Wrong)?;
        let number = |at: usize| {
            signed[at..]
                .first_chunk()
                .map_or(0, |bytes| u64::from_le_bytes(*bytes))
        };
        Ok(Head {
            key: key.id,
            sender: number(8),
            sequence: number(16),
            time: number(24),
        })
    }
}

impl Senders {
    fn take(&mut self, head: &Head, now: u64, window: u64) -> Result<(), SignatureFault> {
        let key = (head.key, head.sender);
        if self.known.len() >= SENDERS_MAX && !self.known.contains_key(&key) {
            if now.abs_diff(self.swept) >= SWEEP_MS {
                self.swept = now;
                // Everything that such a sender has ever sent would be stale by now.
                self.known.retain(|_, seen| seen.latest + window >= now);
            }
            if self.known.len() >= SENDERS_MAX {
                return Err(SignatureFault::NoRoom);
            }
        }
        let seen = self.known.entry(key).or_insert_with(Seen::new);
        seen.latest = seen.latest.max(head.time);
        seen.take(head.sequence)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECRET: &str = "0123456789abcdef0123456789abcdef";
    const OTHER: &str = "fedcba9876543210fedcba9876543210";
    const START: u64 = 1_700_000_000_000;
    const WINDOW: u64 = 30_000;

    fn key(secret: &str) -> SigningKey {
        SigningKey::new(secret.as_bytes())
    }

    fn verifier() -> Verifier {
        Verifier::new(vec![key(OTHER), key(SECRET)], WINDOW, START)
    }

    #[test]
    fn the_frame_is_as_documented() {
        let mut signer = Signer::new(key(SECRET), 0x1122_3344_5566_7788);
        let datagram = signer.sign(b"a:1|c", START);
        let hex: String = datagram.iter().map(|byte| format!("{byte:02x}")).collect();
        let page = include_str!("../../../docs/signed-datagrams.md");
        let example: String = page
            .split("```hex\n")
            .nth(1)
            .and_then(|rest| rest.split("```").next())
            .map(|block| block.split_whitespace().collect())
            .unwrap_or_default();
        assert_eq!(hex, example);
    }

    #[test]
    fn what_was_signed_is_taken_once_and_nothing_else() {
        let verifier = verifier();
        let mut signer = Signer::new(key(SECRET), 7);
        let datagram = signer.sign(b"a:1|c", START + 5);
        assert_eq!(verifier.verify(&datagram, START + 9), Ok(32..37));
        assert_eq!(
            verifier.verify(&datagram, START + 9),
            Err(SignatureFault::Replayed)
        );
        for at in 8..datagram.len() {
            let mut changed = signer.sign(b"a:1|c", START + 5);
            changed[at] ^= 1;
            assert_eq!(
                verifier.verify(&changed, START + 9),
                Err(SignatureFault::Wrong),
                "byte {at}"
            );
        }
        for (at, fault) in [(0, SignatureFault::Missing), (5, SignatureFault::UnknownKey)] {
            let mut changed = datagram.clone();
            changed[at] ^= 1;
            assert_eq!(verifier.verify(&changed, START + 9), Err(fault));
        }
        for length in 0..datagram.len() {
            assert!(verifier.verify(&datagram[..length], START + 9).is_err());
        }
        assert_eq!(verifier.verify(b"plain:1|c", START), Err(SignatureFault::Missing));
        let empty = signer.sign(b"", START);
        assert_eq!(verifier.verify(&empty, START), Ok(32..32));
    }

    #[test]
    fn what_is_out_of_time_is_stale() {
        let verifier = verifier();
        let mut signer = Signer::new(key(OTHER), 7);
        let now = START + 10 * WINDOW;
        for (time, stale) in [
            (now - WINDOW, false),
            (now - WINDOW - 1, true),
            (now + WINDOW, false),
            (now + WINDOW + 1, true),
            (0, true),
            (u64::MAX, true),
        ] {
            let taken = verifier.verify(&signer.sign(b"x", time), now);
            assert_eq!(taken == Err(SignatureFault::Stale), stale, "{time}");
        }
        // What was sent before this agent was there may have been taken by the one before it.
        let before = signer.sign(b"x", START - 1);
        assert_eq!(verifier.verify(&before, START), Err(SignatureFault::Stale));
    }

    #[test]
    fn other_keys_take_over_and_nothing_is_taken_twice() {
        let verifier = verifier();
        let mut old = Signer::new(key(SECRET), 7);
        let mut new = Signer::new(key("a third secret, of which nothing else is to be said"), 7);
        let (before, later) = (old.sign(b"x", START), old.sign(b"x", START));
        assert!(verifier.verify(&before, START).is_ok());
        let with_new = || vec![new.key.clone(), key(SECRET)];
        verifier.replace_keys(with_new());
        assert_eq!(verifier.verify(&before, START), Err(SignatureFault::Replayed));
        assert!(verifier.verify(&later, START).is_ok());
        verifier.replace_keys(vec![new.key.clone()]);
        assert_eq!(verifier.verify(&later, START), Err(SignatureFault::UnknownKey));
        verifier.replace_keys(with_new());
        assert_eq!(
            verifier.verify(&later, START),
            Err(SignatureFault::Replayed),
            "it came back"
        );
        assert!(verifier.verify(&new.sign(b"x", START), START).is_ok());
    }

    #[test]
    fn order_does_not_matter_within_the_window() {
        // The naive twin remembers everything.
        let mut seen = Seen::new();
        let mut taken = std::collections::HashSet::new();
        let (mut state, mut highest) = (88_172_645_463_325_252u64, 0u64);
        for _ in 0..200_000 {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            let jump = if state % 100 == 0 {
                state >> 32 & 0xfff
            } else {
                state >> 32 & 0x7f
            };
            let sequence = (highest + jump).saturating_sub(100);
            highest = highest.max(sequence);
            let expected = if highest - sequence >= SEQUENCES {
                Err(SignatureFault::Stale)
            } else if taken.insert(sequence) {
                Ok(())
            } else {
                Err(SignatureFault::Replayed)
            };
            assert_eq!(seen.take(sequence), expected, "{sequence} of {highest}");
        }
    }

    #[test]
    fn senders_are_bounded_and_forgotten_when_all_of_theirs_is_stale() {
        let verifier = verifier();
        let sign = |sender: u64, time| Signer::new(key(SECRET), sender).sign(b"x", time);
        for sender in 0..SENDERS_MAX as u64 {
            assert!(verifier.verify(&sign(sender, START), START).is_ok());
        }
        let late = START + WINDOW;
        assert_eq!(
            verifier.verify(&sign(1 << 40, late), late),
            Err(SignatureFault::NoRoom)
        );
        // Known ones go on.
        let mut known = Signer::new(key(SECRET), 5);
        known.sign(b"x", late);
        assert!(verifier.verify(&known.sign(b"x", late), late).is_ok());
        let later = late + SWEEP_MS;
        assert!(verifier.verify(&sign(1 << 40, later), later).is_ok());
        assert_eq!(verifier.senders(), 2);
        assert_eq!(
            verifier.verify(&sign(9, START), later),
            Err(SignatureFault::Stale),
            "forgotten, and still not taken twice"
        );
        assert!(verifier.heap_bytes() < 1 << 21);
    }

    #[test]
    fn key_files_are_read_and_faults_named() {
        let read = |text: &str| SigningKey::read(text).map(|keys| keys.len());
        assert_eq!(read(&format!("# ours\n\n{SECRET}\r\n  {OTHER}")), Ok(2));
        assert_eq!(read("# none\n"), Err(SigningKeyError::Empty));
        assert_eq!(
            read("\nshort"),
            Err(SigningKeyError::Length { line: 2, bytes: 5 })
        );
        assert_eq!(
            read(&format!("{SECRET}\n{SECRET}")),
            Err(SigningKeyError::Twice { line: 2 })
        );
        assert_eq!(
            read(&format!("{SECRET} x")),
            Err(SigningKeyError::Unprintable { line: 1 })
        );
        let many: String = (0..=SIGNING_KEYS_MAX).map(|n| format!("{SECRET}{n}\n")).collect();
        assert_eq!(read(&many), Err(SigningKeyError::TooMany));
        let shown = format!("{:?}", key(SECRET));
        assert!(!shown.contains(SECRET), "{shown}");
    }
}
