//! The draft of a configuration.

use std::fmt::Write as _;

use weir_config::show_text;

/// Settings with the text that follows their key's colon, line end included.
#[derive(Debug, Default)]
pub struct Draft {
    /// The agent's settings, in the order of insertion.
    own: Vec<(String, String)>,
    /// Settings of outputs: the output's name, the path in it, and the text.
    outputs: Vec<(&'static str, String, String)>,
}

impl Draft {
    /// Sets a setting of the agent; the last value of a key applies.
    pub fn set(&mut self, key: &str, value: &str) {
        self.own(key, format!(" {}\n", show_text(value)));
    }

    pub fn set_list<T: AsRef<str>>(&mut self, key: &str, values: &[T]) {
        self.own(key, in_one_line(values));
    }

    /// Sets a setting to text in block style.
    pub fn own(&mut self, key: &str, text: String) {
        self.own.retain(|(other, _)| other != key);
        self.own.push((key.to_owned(), text));
    }

    pub fn output(&mut self, output: &'static str, path: &str, text: String) {
        self.outputs.push((output, path.to_owned(), text));
    }

    pub fn set_output(&mut self, output: &'static str, path: &str, value: &str) {
        self.output(output, path, format!(" {}\n", show_text(value)));
    }

    pub fn set_output_list<T: AsRef<str>>(&mut self, output: &'static str, path: &str, values: &[T]) {
        self.output(output, path, in_one_line(values));
    }

    pub fn has_output(&self, output: &str) -> bool {
        self.outputs.iter().any(|(other, _, _)| *other == output)
    }

    /// The text of an output's setting.
    pub fn of_output(&self, path: &str) -> Option<&str> {
        let found = self.outputs.iter().find(|(_, other, _)| other == path);
        found.map(|(_, _, text)| text.trim())
    }

    pub fn text(mut self) -> String {
        let mut body = String::new();
        for (key, text) in &self.own {
            let _ = write!(body, "{key}:{text}");
        }
        self.outputs
            .sort_by_key(|(output, path, _)| (*output, path.contains('.')));
        let (mut output_open, mut record_open) = ("", "");
        for (at, (output, path, value)) in self.outputs.iter().enumerate() {
            if at == 0 {
                body.push_str("outputs:\n");
            }
            if output_open != *output {
                let _ = writeln!(body, "  {output}:");
                (output_open, record_open) = (output, "");
            }
            match path.split_once('.') {
                None => {
                    let _ = write!(body, "    {path}:{value}");
                }
                Some((record, field)) => {
                    if record_open != record {
                        let _ = writeln!(body, "    {record}:");
                        record_open = record;
                    }
                    let _ = write!(body, "      {field}:{value}");
                }
            }
        }
        body
    }
}

fn in_one_line<T: AsRef<str>>(values: &[T]) -> String {
    let shown: Vec<String> = values.iter().map(|value| show_text(value.as_ref())).collect();
    format!(" [{}]\n", shown.join(", "))
}
