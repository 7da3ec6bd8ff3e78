//! The effect of each stage of the rules on one message, for `weir explain`. Ordinary resolution passes [`Untraced`], which the compiler
//! removes.

/// Receives the state after each stage, possibly also after a stage without effect.
pub trait Trace {
    /// `why` names the setting or rule. It is called only if the text is needed.
    fn stage<T: AsRef<str>>(
        &mut self,
        stage: &'static str,
        why: impl FnOnce() -> String,
        name: &str,
        tags: &[T],
    );

    /// The stage had an effect other than on name and tags.
    fn note(&mut self, stage: &'static str, why: impl FnOnce() -> String);

    /// The message is dropped by this stage.
    fn dropped(&mut self, stage: &'static str, why: impl FnOnce() -> String);
}

/// Ignores everything.
pub struct Untraced;

impl Trace for Untraced {
    #[inline(always)]
    fn stage<T: AsRef<str>>(&mut self, _: &'static str, _: impl FnOnce() -> String, _: &str, _: &[T]) {}

    #[inline(always)]
    fn note(&mut self, _: &'static str, _: impl FnOnce() -> String) {}

    #[inline(always)]
    fn dropped(&mut self, _: &'static str, _: impl FnOnce() -> String) {}
}

/// One stage that changed something.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// For example `special_tags` or `namespace`.
    pub stage: &'static str,
    pub why: String,
    /// The new name, if it changed.
    pub renamed_to: Option<String>,
    pub added: Vec<String>,
    pub removed: Vec<String>,
    pub dropped: bool,
}

impl Step {
    fn bare(stage: &'static str, why: String) -> Self {
        Step {
            stage,
            why,
            renamed_to: None,
            added: Vec::new(),
            removed: Vec::new(),
            dropped: false,
        }
    }
}

/// Keeps the stages that changed something, by comparing the state before and after each.
#[derive(Debug, Default)]
pub struct Recorder {
    name: String,
    tags: Vec<String>,
    steps: Vec<Step>,
}

impl Recorder {
    /// Starts with the name and tags of a message.
    pub fn new(name: &str, tags: &[&str]) -> Self {
        Recorder {
            name: name.to_owned(),
            tags: tags.iter().map(ToString::to_string).collect(),
            steps: Vec::new(),
        }
    }

    pub fn steps(self) -> Vec<Step> {
        self.steps
    }
}

/// The elements of `all` that `of` lacks. Each occurrence counts.
fn missing<'a>(all: impl Iterator<Item = &'a str>, of: impl Iterator<Item = &'a str>) -> Vec<String> {
    let mut left: Vec<&str> = of.collect();
    let mut found = Vec::new();
    for text in all {
        match left.iter().position(|other| *other == text) {
            Some(at) => drop(left.swap_remove(at)),
            None => found.push(text.to_owned()),
        }
    }
    found
}

impl Trace for Recorder {
    fn stage<T: AsRef<str>>(
        &mut self,
        stage: &'static str,
        why: impl FnOnce() -> String,
        name: &str,
        tags: &[T],
    ) {
        let before = || self.tags.iter().map(String::as_str);
        let added = missing(tags.iter().map(AsRef::as_ref), before());
        let removed = missing(before(), tags.iter().map(AsRef::as_ref));
        let renamed_to = (name != self.name).then(|| name.to_owned());
        if added.is_empty() && removed.is_empty() && renamed_to.is_none() {
            return;
        }
        self.name = name.to_owned();
        self.tags = tags.iter().map(|tag| tag.as_ref().to_owned()).collect();
        self.steps.push(Step {
            stage,
            why: why(),
            renamed_to,
            added,
            removed,
            dropped: false,
        });
    }

    fn note(&mut self, stage: &'static str, why: impl FnOnce() -> String) {
        self.steps.push(Step::bare(stage, why()));
    }

    fn dropped(&mut self, stage: &'static str, why: impl FnOnce() -> String) {
        self.steps.push(Step {
            dropped: true,
            ..Step::bare(stage, why())
        });
    }
}
