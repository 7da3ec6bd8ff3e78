//! Colours of what commands print.

use std::io::{self, IsTerminal as _};

/// Colours, on a terminal only. They only repeat the words.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Style {
    colours: bool,
}

impl Style {
    /// For standard output. As usual, any non-empty `NO_COLOR` disables colours.
    pub fn of_stdout() -> Self {
        let is_set = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
        let is_dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
        Self {
            colours: io::stdout().is_terminal() && !is_set("NO_COLOR") && !is_dumb,
        }
    }

    fn paint(self, code: &str, text: &str) -> String {
        if self.colours && !text.is_empty() {
            format!("\x1b[{code}m{text}\x1b[0m")
        } else {
            text.to_owned()
        }
    }

    /// Something is lost or broken.
    pub fn bad(self, text: &str) -> String {
        self.paint("1;31", text)
    }

    /// A remedy.
    pub fn remedy(self, text: &str) -> String {
        self.paint("33", text)
    }

    pub fn good(self, text: &str) -> String {
        self.paint("32", text)
    }

    pub fn heading(self, text: &str) -> String {
        self.paint("1", text)
    }

    /// One of several lines of a chart.
    pub fn line(self, number: usize, text: &str) -> String {
        const CODES: [&str; 6] = ["36", "33", "35", "32", "34", "31"];
        self.paint(CODES[number % CODES.len()], text)
    }
}

#[cfg(test)]
impl Style {
    pub const COLOURED: Style = Style { colours: true };
}
