/// Why a line was rejected. One counter per class; the names are part of the operator's interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum ErrorClass {
    /// A metric without `|`.
    NoSeparator,
    /// A metric without `:` in its first field, or with nothing behind it.
    NoValue,
    /// A metric with nothing before its first `:`.
    EmptyName,
    /// A metric type that is none of `c`, `g`, `h`, `d`, `s`, `ms`.
    BadType,
    /// A value that is not a decimal number, or too large for a 64-bit float.
    BadValue,
    /// Only NaN and infinities: understood, and of no use.
    NoFiniteValue,
    /// A section `@` that is not a number.
    BadSampleRate,
    /// A section `T` that is not a positive number of seconds.
    BadTimestamp,
    /// An event header that is not `_e{title bytes,text bytes}:`.
    BadEventHeader,
    /// An event whose title has no bytes.
    EmptyTitle,
    /// An event that ends before its declared lengths, or lacks a `|` behind them.
    EventTooShort,
    /// A service check without a status field.
    BadCheckFormat,
    /// A service check without a name.
    EmptyCheckName,
    /// A service check status that is none of `0`, `1`, `2`, `3`.
    BadCheckStatus,
    /// A name, tag, set member or other text field that is not UTF-8.
    InvalidUtf8,
    /// A last line without its newline where the listener requires one.
    Unterminated,
}

impl ErrorClass {
    /// Number of classes; each class as an index is below it.
    pub const COUNT: usize = 16;

    pub const ALL: [ErrorClass; ErrorClass::COUNT] = [
        ErrorClass::NoSeparator,
        ErrorClass::NoValue,
        ErrorClass::EmptyName,
        ErrorClass::BadType,
        ErrorClass::BadValue,
        ErrorClass::NoFiniteValue,
        ErrorClass::BadSampleRate,
        ErrorClass::BadTimestamp,
        ErrorClass::BadEventHeader,
        ErrorClass::EmptyTitle,
        ErrorClass::EventTooShort,
        ErrorClass::BadCheckFormat,
        ErrorClass::EmptyCheckName,
        ErrorClass::BadCheckStatus,
        ErrorClass::InvalidUtf8,
        ErrorClass::Unterminated,
    ];

    /// The name used in counters, JSON and logs.
    pub const fn as_str(self) -> &'static str {
        match self {
            ErrorClass::NoSeparator => "no_separator",
            ErrorClass::NoValue => "no_value",
            ErrorClass::EmptyName => "empty_name",
            ErrorClass::BadType => "bad_type",
            ErrorClass::BadValue => "bad_value",
            ErrorClass::NoFiniteValue => "no_finite_value",
            ErrorClass::BadSampleRate => "bad_sample_rate",
            ErrorClass::BadTimestamp => "bad_timestamp",
            ErrorClass::BadEventHeader => "bad_event_header",
            ErrorClass::EmptyTitle => "empty_title",
            ErrorClass::EventTooShort => "event_too_short",
            ErrorClass::BadCheckFormat => "bad_check_format",
            ErrorClass::EmptyCheckName => "empty_check_name",
            ErrorClass::BadCheckStatus => "bad_check_status",
            ErrorClass::InvalidUtf8 => "invalid_utf8",
            ErrorClass::Unterminated => "unterminated",
        }
    }
}

impl std::fmt::Display for ErrorClass {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

impl std::error::Error for ErrorClass {}
