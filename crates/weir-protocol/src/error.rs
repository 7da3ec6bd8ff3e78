use weir_counters::books::MESSAGES_REJECTED;
use weir_counters::{Significance, counters};

const FIND_THE_CLIENT: Significance = Significance::Problem(
    "`weir tail --rejected` shows the lines, with their senders: correct the client that sends them.",
);

counters! {
    /// Why a line was rejected. The names are part of the operator's interface.
    pub enum ErrorClass {
        /// A metric without `|`.
        NoSeparator = MESSAGES_REJECTED.because("no_separator"), FIND_THE_CLIENT;
        /// A metric without `:` in its first field, or with nothing after it.
        NoValue = MESSAGES_REJECTED.because("no_value"), FIND_THE_CLIENT;
        /// A metric with nothing before its first `:`.
        EmptyName = MESSAGES_REJECTED.because("empty_name"), FIND_THE_CLIENT;
        /// A metric type that is none of `c`, `g`, `h`, `d`, `s`, `ms`.
        BadType = MESSAGES_REJECTED.because("bad_type"), FIND_THE_CLIENT;
        /// A value that is not a decimal number, or too large for a 64-bit float.
        BadValue = MESSAGES_REJECTED.because("bad_value"), FIND_THE_CLIENT;
        /// Only NaN and infinities: valid, but unusable.
        NoFiniteValue = MESSAGES_REJECTED.because("no_finite_value"), FIND_THE_CLIENT;
        /// A section `@` that is not a number.
        BadSampleRate = MESSAGES_REJECTED.because("bad_sample_rate"), FIND_THE_CLIENT;
        /// A section `T` that is not a positive number of seconds.
        BadTimestamp = MESSAGES_REJECTED.because("bad_timestamp"), FIND_THE_CLIENT;
        /// An event header that is not `_e{title bytes,text bytes}:`.
        BadEventHeader = MESSAGES_REJECTED.because("bad_event_header"), FIND_THE_CLIENT;
        /// An event whose title has no bytes.
        EmptyTitle = MESSAGES_REJECTED.because("empty_title"), FIND_THE_CLIENT;
        /// An event that ends before its declared lengths, or lacks a `|` after them.
        EventTooShort = MESSAGES_REJECTED.because("event_too_short"), FIND_THE_CLIENT;
        /// A service check without a status field.
        BadCheckFormat = MESSAGES_REJECTED.because("bad_check_format"), FIND_THE_CLIENT;
        /// A service check without a name.
        EmptyCheckName = MESSAGES_REJECTED.because("empty_check_name"), FIND_THE_CLIENT;
        /// A service check status that is none of `0`, `1`, `2`, `3`.
        BadCheckStatus = MESSAGES_REJECTED.because("bad_check_status"), FIND_THE_CLIENT;
        /// A name, tag, set member or other text field that is not UTF-8.
        InvalidUtf8 = MESSAGES_REJECTED.because("invalid_utf8"), FIND_THE_CLIENT;
        /// A last line without the newline that the listener requires.
        Unterminated = MESSAGES_REJECTED.because("unterminated"), FIND_THE_CLIENT;
    }
}

impl std::fmt::Display for ErrorClass {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

impl std::error::Error for ErrorClass {}
