//! The headers by which a client numbers its requests, so that each is added once.

use hyper::header::HeaderMap;
use weir_ingest::{NUMBERS_UNDER_WAY, RequestNumber};

const CLIENT: &str = "x-weir-client";
const SEQUENCE: &str = "x-weir-sequence";
const OLDEST: &str = "x-weir-oldest";

/// Digits of a client's name.
const CLIENT_DIGITS: usize = 32;

/// The largest number: clients may count with a sign.
const NUMBER_MAX: u64 = u64::MAX >> 1;

/// Why the headers of a request are invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NumberError {
    #[error("{0} is there more than once")]
    Repeated(&'static str),
    #[error("{SEQUENCE} without {0}: a request with a number has {CLIENT}, {SEQUENCE} and {OLDEST}")]
    Missing(&'static str),
    #[error("{OLDEST} without {SEQUENCE}: a request with a number has {CLIENT}, {SEQUENCE} and {OLDEST}")]
    OldestAlone,
    #[error("{CLIENT} is {CLIENT_DIGITS} hexadecimal digits")]
    Client,
    #[error("{0} is a decimal number from 1 to {NUMBER_MAX}")]
    Number(&'static str),
    #[error("{OLDEST} is greater than {SEQUENCE}")]
    OldestIsNewer,
}

/// The number of a request, if it has one. A client may name itself without a number.
pub fn of(headers: &HeaderMap) -> Result<Option<RequestNumber>, NumberError> {
    let (client, sequence, oldest) = (
        one(headers, CLIENT)?,
        one(headers, SEQUENCE)?,
        one(headers, OLDEST)?,
    );
    let client = client.map(|client| parse_client(client).ok_or(NumberError::Client));
    let client = client.transpose()?;
    let Some(sequence) = sequence else {
        return match oldest {
            Some(_) => Err(NumberError::OldestAlone),
            None => Ok(None),
        };
    };
    let number = parse_number(sequence).ok_or(NumberError::Number(SEQUENCE))?;
    let client = client.ok_or(NumberError::Missing(CLIENT))?;
    let oldest = oldest.ok_or(NumberError::Missing(OLDEST))?;
    let oldest = parse_number(oldest).ok_or(NumberError::Number(OLDEST))?;
    if oldest > number {
        return Err(NumberError::OldestIsNewer);
    }
    Ok(Some(RequestNumber {
        client,
        number,
        oldest,
    }))
}

/// The reason for [`weir_ingest::ColumnFate::TooFar`].
pub fn too_far() -> String {
    format!("{SEQUENCE}: at most {NUMBERS_UNDER_WAY} numbers may be under way, from {OLDEST} on")
}

fn one<'a>(headers: &'a HeaderMap, name: &'static str) -> Result<Option<&'a [u8]>, NumberError> {
    let mut values = headers.get_all(name).iter();
    let first = values.next().map(|value| value.as_bytes());
    match values.next() {
        None => Ok(first),
        Some(_) => Err(NumberError::Repeated(name)),
    }
}

fn parse_client(value: &[u8]) -> Option<u128> {
    let is_hexadecimal = value.len() == CLIENT_DIGITS && value.iter().all(u8::is_ascii_hexdigit);
    is_hexadecimal.then(|| u128::from_str_radix(str::from_utf8(value).ok()?, 16).ok())?
}

fn parse_number(value: &[u8]) -> Option<u64> {
    let is_decimal = !value.is_empty() && value.iter().all(u8::is_ascii_digit);
    let number: u64 = is_decimal.then(|| str::from_utf8(value).ok()?.parse().ok())??;
    (1..=NUMBER_MAX).contains(&number).then_some(number)
}

#[cfg(test)]
mod tests {
    use hyper::header::HeaderValue;

    use super::*;

    fn read(headers: &[(&'static str, &str)]) -> Result<Option<RequestNumber>, NumberError> {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.append(*name, HeaderValue::from_str(value).unwrap());
        }
        of(&map)
    }

    const NAME: &str = "000102030405060708090a0b0c0d0eFf";

    #[test]
    fn three_headers_are_a_number() {
        assert_eq!(read(&[]), Ok(None));
        assert_eq!(read(&[(CLIENT, NAME)]), Ok(None));
        let number = |sequence, oldest| {
            let found = read(&[(CLIENT, NAME), (SEQUENCE, sequence), (OLDEST, oldest)]);
            found.map(|found| found.unwrap())
        };
        assert_eq!(
            number("7", "5"),
            Ok(RequestNumber {
                client: 0x0001_0203_0405_0607_0809_0a0b_0c0d_0eff,
                number: 7,
                oldest: 5,
            })
        );
        assert_eq!(number("9223372036854775807", "1").unwrap().number, NUMBER_MAX);
    }

    #[test]
    fn anything_else_is_refused_with_its_reason() {
        for (headers, reason) in [
            (&[(CLIENT, "abc")][..], NumberError::Client),
            (
                &[(CLIENT, "+00102030405060708090a0b0c0d0e0f")],
                NumberError::Client,
            ),
            (&[(SEQUENCE, "1"), (OLDEST, "1")], NumberError::Missing(CLIENT)),
            (&[(CLIENT, NAME), (SEQUENCE, "1")], NumberError::Missing(OLDEST)),
            (&[(CLIENT, NAME), (OLDEST, "1")], NumberError::OldestAlone),
            (&[(CLIENT, NAME), (CLIENT, NAME)], NumberError::Repeated(CLIENT)),
            (
                &[(CLIENT, NAME), (SEQUENCE, "3"), (OLDEST, "4")],
                NumberError::OldestIsNewer,
            ),
        ] {
            assert_eq!(read(headers), Err(reason), "{headers:?}");
        }
        for sequence in [
            "",
            "0",
            "-1",
            "+1",
            " 1",
            "1.0",
            "9223372036854775808",
            "99999999999999999999",
        ] {
            for (one, other, name) in [(sequence, "1", SEQUENCE), ("9", sequence, OLDEST)] {
                let found = read(&[(CLIENT, NAME), (SEQUENCE, one), (OLDEST, other)]);
                assert_eq!(found, Err(NumberError::Number(name)), "{one:?} {other:?}");
            }
        }
    }
}
