//! A folder of experiments: defaults, templates, cases and their matrices, presets, suites, and overrides by target.

use super::experiment::{Experiment, Layer, SinkLayer, TargetLayer};
use super::layer::{self, ConfigError, Layered, List, Patch, Result, Slot, layer, suggestion};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// A case after inheritance and matrix expansion, before any target.
#[derive(Debug, Clone)]
pub struct Case {
    pub name: String,
    pub layer: Layer,
    /// Files beside `experiment.yaml` that are copied into the work directory.
    pub files: Option<PathBuf>,
}

impl Case {
    /// Changes one value: `measure.duration=10s`; with names before a colon, only in these cases.
    pub fn set(&mut self, setting: &str) -> Result<()> {
        let (path, value) = setting.split_once('=').ok_or_else(|| {
            ConfigError(format!(
                "--set {setting}: write key=value, for example measure.duration=10s"
            ))
        })?;
        let (names, path) = path.split_once(':').unwrap_or(("*", path));
        if !glob(names.trim(), &self.name) {
            return Ok(());
        }
        let text = format!("{}: {value}\n", serde_json::json!(path.trim()));
        let patch: Patch<Layer> = layer::parse(&text, "--set")?;
        self.layer.override_with(patch.0);
        Ok(())
    }
}

/// The overrides of a target from `targets.yaml` (or of a plain binary).
#[derive(Debug, Clone, Default)]
pub struct Overlay {
    /// Its names in `arms_override`, besides `baseline` and `comparison`.
    pub names: Vec<String>,
    /// Overrides the experiment's `target:`.
    pub target: TargetLayer,
    /// Replaces the experiment's `sinks:` when present.
    pub sinks: List<SinkLayer>,
}

/// Resolves the case for one arm.
pub fn resolve(case: &Case, overlay: &Overlay) -> Result<Experiment> {
    let layer = resolved_layer(case, overlay);
    layer
        .experiment()
        .map_err(|error| ConfigError(format!("experiment {}: {error}", case.name)))
}

pub fn resolved_layer(case: &Case, overlay: &Overlay) -> Layer {
    let mut layer = case.layer.clone();
    let overrides = std::mem::take(&mut layer.arms_override);
    layer.target.override_with(overlay.target.clone());
    layer.sinks.override_with(overlay.sinks.clone());
    for (arm, changes) in overrides {
        if overlay.names.contains(&arm) {
            layer.override_with(changes.0);
        }
    }
    layer
}

layer!(
    /// A suite.
    SuiteLayer at "" { description: Slot<String>, experiments: Slot<Vec<String>>, }
);

/// A text in which a matrix replaces words in braces before it is parsed, and the file that contains it.
#[derive(Debug, Clone, PartialEq)]
struct TemplateFile {
    file: String,
    text: String,
}

impl TemplateFile {
    fn layer(&self, choice: &[(&str, &str)]) -> Result<Layer> {
        let mut text = self.text.clone();
        for (axis, value) in choice {
            text = text.replace(&format!("{{matrix.{axis}}}"), value);
        }
        if !choice.is_empty() && text.contains("{matrix.") {
            let line = text
                .lines()
                .position(|line| line.contains("{matrix."))
                .unwrap_or(0)
                + 1;
            return Err(ConfigError(format!(
                "{}:{line}: there is no such matrix axis",
                self.file
            )));
        }
        layer::parse(&text, &self.file)
    }
}

/// The files of `rig/experiments/`, by their paths in it.
static BUILT_IN: &[(&str, &str)] = include!(concat!(env!("OUT_DIR"), "/library.rs"));

/// The preset that changes nothing.
const THOROUGH: &str = "thorough";

/// Folders that extend the library in the program, without `--library`: that of a checkout, whose edits count at once, and a local one.
const USUAL: [&str; 2] = ["rig/experiments", "experiments"];

/// The files of a folder of experiments, or of the one in the program.
#[derive(Debug)]
struct Files {
    name: String,
    root: Option<PathBuf>,
    /// By path in the folder. An entry of a file with several has the path that it would have as a file of its own.
    texts: BTreeMap<String, TemplateFile>,
}

/// Folders in order: an entry of a later one replaces that of an earlier one with the same path; their targets are merged.
#[derive(Debug)]
pub struct Library {
    /// As messages name it.
    pub name: String,
    folders: Vec<Files>,
}

impl Library {
    /// Only the folder that was asked for; else what is in the program, and each usual folder that has experiments or targets.
    pub fn open(folder: Option<&Path>) -> Result<Self> {
        if let Some(folder) = folder {
            return Self::read(folder);
        }
        let mut folders = vec![Files::built_in()?];
        for usual in USUAL.map(Path::new) {
            if usual.join("cases").is_dir() || usual.join("targets.yaml").is_file() {
                folders.push(Files::read(usual)?);
            }
        }
        Ok(Self::of(folders))
    }

    fn read(root: &Path) -> Result<Self> {
        if !root.join("cases").is_dir() {
            return Err(ConfigError(format!(
                "{}: no folder \"cases\" in it; give the folder of experiments with --library, or leave that out for the \
                 experiments in this program",
                root.display()
            )));
        }
        Ok(Self::of(vec![Files::read(root)?]))
    }

    fn of(folders: Vec<Files>) -> Self {
        let names: Vec<&str> = folders.iter().map(|files| files.name.as_str()).collect();
        Self {
            name: names.join(" and "),
            folders,
        }
    }

    /// A file of the library, by its path in it.
    fn source(&self, path: &str) -> Option<TemplateFile> {
        self.folders.iter().rev().find_map(|files| files.source(path))
    }

    /// Replacements of the star in the paths of files, in order.
    fn names<'a>(&'a self, head: &'a str, tail: &'a str) -> impl Iterator<Item = &'a str> {
        let paths = self.folders.iter().flat_map(|files| files.texts.keys());
        let names = paths.filter_map(move |path| path.strip_prefix(head)?.strip_suffix(tail));
        names.collect::<BTreeSet<&str>>().into_iter()
    }

    /// Every `targets.yaml` and its name in messages; entries of later ones replace those of the same name.
    pub fn targets(&self) -> impl Iterator<Item = (String, String)> {
        let sources = self
            .folders
            .iter()
            .filter_map(|files| files.source("targets.yaml"));
        sources.map(|source| (source.file, source.text))
    }

    /// Files beside a case that are copied into the work directory.
    fn files_of(&self, case: &str) -> Option<PathBuf> {
        let definition = format!("cases/{case}/experiment.yaml");
        let folder = self
            .folders
            .iter()
            .rev()
            .find(|files| files.texts.contains_key(&definition))?;
        let path = folder.root.as_ref()?.join("cases").join(case).join("target");
        path.is_dir().then_some(path)
    }
}

impl Files {
    fn built_in() -> Result<Self> {
        let owned = |(path, text): &(&str, &str)| Ok(((*path).to_owned(), (*text).to_owned()));
        let name = "the library in weir-bench".to_owned();
        Self::of(name, None, BUILT_IN.iter().map(owned))
    }

    fn of(
        name: String,
        root: Option<PathBuf>,
        files: impl Iterator<Item = Result<(String, String)>>,
    ) -> Result<Self> {
        let mut texts = BTreeMap::new();
        for file in files {
            let (file, text) = file?;
            let entries = match heads(&file) {
                Some((head, tail)) => entries(&file, &text, head, tail)?,
                None => vec![(file.clone(), text)],
            };
            for (path, text) in entries {
                let file = file.clone();
                if let Some(other) = texts.insert(path.clone(), TemplateFile { file, text }) {
                    return Err(ConfigError(format!("{path} is also in {}", other.file)));
                }
            }
        }
        Ok(Self { name, root, texts })
    }

    fn read(root: &Path) -> Result<Self> {
        let mut files = yaml_files(root)?;
        for folder in ["cases", "templates", "suites", "presets"] {
            files.extend(yaml_files(&root.join(folder))?);
        }
        let cases = match root.join("cases") {
            folder if folder.is_dir() => paths(&folder, |path| path.is_dir())?,
            _ => Vec::new(),
        };
        files.extend(cases.iter().map(|folder| folder.join("experiment.yaml")));
        let read = |file: &PathBuf| {
            let name = file.strip_prefix(root).unwrap_or(file);
            Ok((name.display().to_string(), layer::read_text(file)?))
        };
        let name = root.display().to_string();
        Self::of(name, Some(root.to_owned()), files.iter().map(read))
    }

    fn source(&self, path: &str) -> Option<TemplateFile> {
        let TemplateFile { file, text } = self.texts.get(path)?.clone();
        let file = match &self.root {
            Some(root) => root.join(file).display().to_string(),
            None => format!("{}: {file}", self.name),
        };
        Some(TemplateFile { file, text })
    }
}

impl Library {
    /// Every case, matrices expanded, sorted by name.
    pub fn cases(&self) -> Result<Vec<Case>> {
        let mut cases = Vec::new();
        for name in self.names("cases/", "/experiment.yaml") {
            let source = self.source(&format!("cases/{name}/experiment.yaml"));
            cases.extend(self.expand(name, &source.expect("listed"))?);
        }
        cases.sort_by(|a, b| a.name.cmp(&b.name));
        match cases.windows(2).find(|pair| pair[0].name == pair[1].name) {
            Some(pair) => Err(ConfigError(format!(
                "two experiments are called {:?}",
                pair[0].name
            ))),
            None => Ok(cases),
        }
    }

    /// Cases that match any of the patterns (names or globs), in order of name.
    pub fn select(&self, patterns: &[String]) -> Result<Vec<Case>> {
        let all = self.cases()?;
        let names: Vec<&str> = all.iter().map(|case| case.name.as_str()).collect();
        for pattern in patterns {
            if !names.iter().any(|name| glob(pattern, name)) {
                return Err(ConfigError(format!(
                    "there is no experiment {pattern:?} in {}{}; `weir-bench show` lists them, --library names another folder",
                    self.name,
                    suggestion(pattern, &names)
                )));
            }
        }
        Ok(all
            .into_iter()
            .filter(|case| patterns.iter().any(|pattern| glob(pattern, &case.name)))
            .collect())
    }

    /// The patterns of a suite.
    pub fn suite(&self, name: &str) -> Result<Vec<String>> {
        let Some(source) = self.source(&format!("suites/{name}.yaml")) else {
            let known = self.suites().collect();
            return Err(self.missing("suite", name, known));
        };
        let suite: SuiteLayer = layer::parse(&source.text, &source.file)?;
        suite.experiments.required("experiments").cloned()
    }

    pub fn suites(&self) -> impl Iterator<Item = &str> {
        self.names("suites/", ".yaml")
    }

    /// A preset; `thorough` changes nothing.
    pub fn preset(&self, name: &str) -> Result<Layer> {
        match self.source(&format!("presets/{name}.yaml")) {
            Some(source) => source.layer(&[]),
            None if name == THOROUGH => Ok(Layer::default()),
            None => {
                let presets = self.names("presets/", ".yaml");
                let known = std::iter::once(THOROUGH).chain(presets).collect();
                Err(self.missing("preset", name, known))
            }
        }
    }

    fn missing(&self, what: &str, name: &str, known: Vec<&str>) -> ConfigError {
        let hint = suggestion(name, &known);
        let known = match known.is_empty() {
            true => "none".to_owned(),
            false => known.join(", "),
        };
        ConfigError(format!(
            "there is no {what} {name:?} in {}{hint}; there are: {known}; --library names another folder",
            self.name
        ))
    }

    fn expand(&self, folder_name: &str, source: &TemplateFile) -> Result<Vec<Case>> {
        let raw = source.layer(&[])?;
        let files = self.files_of(folder_name);
        let case = |choice: &[(&str, &str)]| -> Result<Case> {
            let mut layer = match self.source("defaults.yaml") {
                Some(defaults) => defaults.layer(choice)?,
                None => Layer::default(),
            };
            layer.override_with(self.inherit(source.layer(choice)?, choice, &mut Vec::new())?);
            layer.matrix.clear();
            let name = std::mem::take(&mut layer.name).text();
            Ok(Case {
                name: name.unwrap_or_else(|| folder_name.to_owned()),
                layer,
                files: files.clone(),
            })
        };
        if raw.matrix.is_empty() {
            return Ok(vec![case(&[])?]);
        }
        let choices = choices(&raw)?;
        choices.iter().map(|choice| case(choice)).collect()
    }

    /// Applies `own` to the template that it extends, recursively.
    fn inherit(&self, mut own: Layer, choice: &[(&str, &str)], chain: &mut Vec<String>) -> Result<Layer> {
        let extends = std::mem::take(&mut own.extends);
        let Some(name) = extends.text() else {
            return Ok(own);
        };
        let Some(template) = self.source(&format!("templates/{name}.yaml")) else {
            let names: Vec<&str> = self.names("templates/", ".yaml").collect();
            let hint = suggestion(&name, &names);
            let what = format!(
                "there is no template {name:?}{hint}; there are: {}",
                names.join(", ")
            );
            return Err(extends.invalid("extends", what));
        };
        if chain.contains(&name) {
            let what = format!("{} -> {name} is a circle", chain.join(" -> "));
            return Err(extends.invalid("extends", what));
        }
        chain.push(name);
        let mut base = self.inherit(template.layer(choice)?, choice, chain)?;
        base.override_with(own);
        Ok(base)
    }
}

/// Every combination of the values of a matrix.
fn choices(layer: &Layer) -> Result<Vec<Vec<(&str, &str)>>> {
    let mut choices = vec![Vec::new()];
    for (axis, values) in &layer.matrix {
        let pattern = layer.name.get().ok_or_else(|| {
            let what = "a matrix needs `name`, for example \"case-{matrix.rate}\"";
            values.invalid("matrix", what)
        })?;
        if !pattern.contains(&format!("{{matrix.{axis}}}")) {
            let what = format!("it must contain {{matrix.{axis}}}, or names would repeat");
            return Err(layer.name.invalid("name", what));
        }
        let values = values.required("matrix")?;
        let with = |choice: &Vec<_>, value| [choice.clone(), vec![(axis.as_str(), value)]].concat();
        choices = choices
            .iter()
            .flat_map(|choice| values.iter().map(move |value| with(choice, value.as_str())))
            .collect();
    }
    Ok(choices)
}

/// Head and tail of the paths that the entries of a file have, if it holds several.
fn heads(file: &str) -> Option<(&'static str, &'static str)> {
    match file {
        "suites.yaml" => Some(("suites/", ".yaml")),
        "templates.yaml" => Some(("templates/", ".yaml")),
        "presets.yaml" => Some(("presets/", ".yaml")),
        _ => {
            let group = file.strip_prefix("cases/")?;
            (!group.contains('/')).then_some(("cases/", "/experiment.yaml"))
        }
    }
}

/// The entries of a file, each a name with a colon and below it indented settings. Settings keep their lines and columns, so that an
/// error names the place in the file.
fn entries(file: &str, text: &str, head: &str, tail: &str) -> Result<Vec<(String, String)>> {
    let mut entries: Vec<(String, String)> = Vec::new();
    for (above, line) in text.lines().enumerate() {
        let is_blank = line.starts_with('#') || line.trim().is_empty();
        match (entries.last_mut(), line.strip_suffix(':')) {
            (Some((_, settings)), _) if is_blank => settings.push('\n'),
            (None, _) if is_blank => {}
            (Some((_, settings)), _) if line.starts_with(' ') => {
                settings.push_str(line);
                settings.push('\n');
            }
            (_, Some(name)) if !line.starts_with(' ') => {
                entries.push((format!("{head}{name}{tail}"), "\n".repeat(above + 1)));
            }
            _ => {
                let what = "an entry is a name with a colon, and indented below it are its settings";
                return Err(ConfigError(format!("{file}:{}: {what}", above + 1)));
            }
        }
    }
    Ok(entries)
}

/// `*` matches any run of characters; everything else matches itself.
pub fn glob(pattern: &str, name: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == name,
        Some((head, tail)) => name
            .strip_prefix(head)
            .is_some_and(|rest| (0..=rest.len()).any(|i| rest.is_char_boundary(i) && glob(tail, &rest[i..]))),
    }
}

fn paths(folder: &Path, wanted: impl Fn(&Path) -> bool) -> Result<Vec<PathBuf>> {
    let entries = std::fs::read_dir(folder).map_err(|e| ConfigError(format!("{}: {e}", folder.display())))?;
    let paths = entries.filter_map(|entry| entry.ok().map(|entry| entry.path()));
    let mut paths: Vec<PathBuf> = paths.filter(|path| wanted(path)).collect();
    paths.sort();
    Ok(paths)
}

fn yaml_files(folder: &Path) -> Result<Vec<PathBuf>> {
    match folder.is_dir() {
        true => paths(folder, |path| {
            path.extension().is_some_and(|extension| extension == "yaml")
        }),
        false => Ok(Vec::new()),
    }
}

#[cfg(test)]
mod tests {
    use super::super::experiment::Load;
    use super::super::goal::Goal;
    use super::*;

    /// Outside of a checkout the message named a flag that did not exist.
    #[test]
    fn a_folder_without_experiments_is_an_error_with_the_flag() {
        let dir = tempfile::tempdir().unwrap();
        let error = Library::open(Some(dir.path())).err().unwrap().to_string();
        let words = error.split_whitespace();
        let flags: Vec<&str> = words.filter_map(|word| word.strip_prefix("--")).collect();
        assert_eq!(flags, ["library,"], "{error}");
        assert!(
            include_str!("run/mod.rs").contains("\n    pub library: Option<PathBuf>,\n"),
            "the flag is called otherwise"
        );
    }

    /// A case that somebody adds to the folder is in the next build.
    #[test]
    fn the_library_in_the_program_is_that_of_the_checkout() {
        let folder = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../experiments"));
        let built_in = Library::of(vec![Files::built_in().unwrap()]);
        let read = Library::read(folder).unwrap();
        assert_eq!(built_in.folders[0].texts, read.folders[0].texts);
        let names = |library: &Library| {
            let cases = library.cases().unwrap().into_iter();
            cases.map(|case| case.name).collect::<Vec<_>>()
        };
        assert_eq!(names(&built_in), names(&read));
    }

    #[test]
    fn a_local_folder_extends_the_library_in_the_program() {
        let dir = tempfile::tempdir().unwrap();
        for (path, text) in [
            ("cases/own/experiment.yaml", "extends: practice\n"),
            ("cases/own/target/file", ""),
            (
                "cases/practice/experiment.yaml",
                "extends: practice\ndescription: mine\n",
            ),
            ("targets.yaml", "targets: {own: {find: [own]}}\n"),
        ] {
            let path = dir.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        let library = Library::of(vec![Files::built_in().unwrap(), Files::read(dir.path()).unwrap()]);
        let case = |name: &str| library.select(&[name.to_owned()]).unwrap().remove(0);
        assert_eq!(case("own").layer.description.text(), None);
        assert_eq!(case("own").files, Some(dir.path().join("cases/own/target")));
        assert_eq!(case("practice").layer.description.text().as_deref(), Some("mine"));
        assert_eq!(case("idle").files, None);
        assert!(library.preset("quick").is_ok() && library.suite("dsd").is_ok());
        assert_eq!(library.targets().count(), 2);
        assert!(
            library.name.starts_with("the library in weir-bench and /"),
            "{}",
            library.name
        );
    }

    fn library(files: &[(&str, &str)]) -> (tempfile::TempDir, Library) {
        let dir = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = dir.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        let library = Library::open(Some(dir.path())).unwrap();
        (dir, library)
    }

    fn overlay(names: &[&str], yaml: &str) -> Overlay {
        Overlay {
            names: names.iter().map(|n| (*n).to_owned()).collect(),
            target: layer::parse(yaml, "targets.yaml").unwrap(),
            sinks: List::default(),
        }
    }

    const BASE: &str = "goal: cpu\nmeasure: {replicates: 5, duration: 20s}\ntarget: {stop: {grace: 3s}}\n";

    #[test]
    fn defaults_templates_cases_and_targets_in_that_order() {
        let (_dir, library) = library(&[
            ("defaults.yaml", BASE),
            (
                "templates/dsd.yaml",
                "extends: root\nmeasure: {duration: 30s}\nload: [{profile: p, to: {listen: [unix_datagram, udp]}}]\n",
            ),
            (
                "templates/root.yaml",
                "description: from root\nmeasure: {warmup: 1s, duration: 99s}\n",
            ),
            (
                "cases/one/experiment.yaml",
                "extends: dsd\ngoal: memory\nmeasure: {warmup: null}\narms_override: {peer: {goal: cpu_per_message, load.0.to: 'udp://x:1'}}\n",
            ),
        ]);
        let case = &library.cases().unwrap()[0];
        assert_eq!(case.name, "one");
        let weir = overlay(
            &["weir"],
            "command: ['{bin}']\nlisten: {unix_datagram: 'unixgram://{work}/d.sock'}\n",
        );
        let e = resolve(case, &weir).unwrap();
        assert_eq!(
            (e.goal, e.measure.replicates, e.measure.duration.as_secs()),
            (Goal::Memory, 5, 30)
        );
        assert_eq!(
            e.measure.warmup.as_secs(),
            10,
            "null falls back to the built-in default"
        );
        assert_eq!(e.description, "from root");
        assert_eq!(e.target.stop_grace.as_secs(), 3);
        assert!(matches!(&e.load[0], Load::Profile { to, .. } if to == "unixgram://{work}/d.sock"));
        let peer = overlay(&["peer"], "command: [p]\nlisten: {udp: 'udp://127.0.0.1:1'}\n");
        let e = resolve(case, &peer).unwrap();
        assert_eq!(e.goal, Goal::CpuPerMessage);
        assert!(matches!(&e.load[0], Load::Profile { to, .. } if to == "udp://x:1"));
    }

    #[test]
    fn a_matrix_becomes_named_cases() {
        let (_dir, library) = library(&[
            ("defaults.yaml", BASE),
            (
                "cases/grid/experiment.yaml",
                "name: 'g-{matrix.rate}-{matrix.n}'\nmatrix: {rate: [8MiB, 64MiB], n: [1, 2]}\nmeasure: {replicates: '{matrix.n}'}\nload: [{profile: 'p-{matrix.rate}', to: 'udp://h:1'}]\n",
            ),
        ]);
        let cases = library.cases().unwrap();
        let names: Vec<&str> = cases.iter().map(|c| c.name.as_str()).collect();
        assert_eq!(names, ["g-64MiB-1", "g-64MiB-2", "g-8MiB-1", "g-8MiB-2"]);
        let e = resolve(&cases[3], &overlay(&[], "command: [x]\n")).unwrap();
        assert_eq!(e.measure.replicates, 2);
        assert!(matches!(&e.load[0], Load::Profile { profile, .. } if profile == "p-8MiB"));
        assert_eq!(library.select(&["g-8*".to_owned()]).unwrap().len(), 2);
        assert!(library.select(&["h".to_owned()]).is_err());
    }

    #[test]
    fn invalid_files_are_errors_with_position_and_allowed_values() {
        let broken = |yaml: &str| {
            let (_dir, library) = library(&[("defaults.yaml", BASE), ("cases/one/experiment.yaml", yaml)]);
            let error = library
                .cases()
                .and_then(|c| resolve(&c[0], &overlay(&[], "command: [x]\n")))
                .unwrap_err();
            error.0
        };
        let error = broken("\ngoal: cpu_per_mesage\n");
        assert!(
            error.contains("experiment.yaml:2: goal: \"cpu_per_mesage\"")
                && error.contains("did you mean \"cpu_per_message\""),
            "{error}"
        );
        let error = broken("measure:\n  duraton: 3s\n");
        assert!(
            error.contains("experiment.yaml:2: measure.duraton: unknown key; did you mean \"duration\"?"),
            "{error}"
        );
        let error = broken("checks: [{name: a, series: pss_byte, upper: 1MiB}]\n");
        assert!(error.contains("did you mean \"pss_bytes\""), "{error}");
        let error = broken("goal: max_rate\nmeasure: {together: true}\n");
        assert!(
            error.contains("experiment.yaml:1: measure.together") && error.contains("max_rate"),
            "{error}"
        );
        assert!(broken("checks: [{name: a, series: pss_bytes}]\n").contains("needs `upper`"));
        assert!(broken("extends: nothing\n").contains("no template"));
        assert!(broken("measure: {warmup: 10}\n").contains("a duration such as 10s"));
        assert!(
            broken("load: [{profile: p, to: {listen: [udp]}}]\n")
                .contains("listens on none of udp (it has: nothing)")
        );
        assert!(broken("matrix: {a: [1]}\n").contains("needs `name`"));
        assert!(broken("target: {files: {../x: y}}\n").contains("leaves the work directory"));
        assert!(broken("target: [\n").contains("experiment.yaml"));
    }

    #[test]
    fn arms_run_together_where_goal_and_load_allow_it() {
        let together = |case: &str| {
            let (_dir, library) = library(&[(
                "cases/one/experiment.yaml",
                &format!("target: {{command: [x]}}\n{case}"),
            )]);
            let cases = library.cases().unwrap();
            resolve(&cases[0], &overlay(&[], "{}\n")).unwrap().together
        };
        let load = |how: &str| format!("load: [{{profile: p, to: 'udp://x:1'{how}}}]\n");
        assert!(together(&format!("goal: cpu_per_message\n{}", load(""))));
        assert!(together(&format!(
            "goal: memory\nmeasure: {{together: auto}}\n{}",
            load("")
        )));
        assert!(!together(&format!(
            "goal: memory\nmeasure: {{together: false}}\n{}",
            load("")
        )));
        assert!(!together(&format!("goal: loss\n{}", load(""))));
        assert!(!together(&format!("goal: startup\n{}", load(""))));
        let all_out = load(", all_out: true");
        assert!(!together(&format!("goal: cpu_per_message\n{all_out}")));
        assert!(together(&format!(
            "goal: cpu_per_message\nmeasure: {{together: true}}\n{all_out}"
        )));
        assert!(!together(&format!(
            "goal: cpu\nvalid: {{overload: true}}\n{}",
            load("")
        )));
    }

    /// An entry of a group is what it would be in a file of its own, and an error names its line there.
    #[test]
    fn a_file_holds_several_entries() {
        let (_dir, library) = library(&[
            ("defaults.yaml", BASE),
            (
                "templates.yaml",
                "# Shared.\n\nbase:\n  description: of a template\n",
            ),
            ("suites.yaml", "both:\n  experiments: [one, two]\n"),
            (
                "cases/group.yaml",
                "# A group.\n\none:\n  extends: base\n\n# Another.\ntwo:\n  # Inside.\n  goal: memory\n  measure: {duraton: 3s}\n",
            ),
        ]);
        assert_eq!(library.suite("both").unwrap(), ["one", "two"]);
        let error = library.cases().unwrap_err().0;
        assert!(
            error.contains("cases/group.yaml:10: measure.duraton: unknown key"),
            "{error}"
        );
        let open = |files: &[(&str, &str)]| {
            let read = |(path, text): &(&str, &str)| Ok(((*path).to_owned(), (*text).to_owned()));
            Files::of("here".to_owned(), None, files.iter().map(read))
        };
        let group = ("cases/group.yaml", "one:\n  goal: cpu\ntwo:\n");
        let files = open(&[group]).unwrap();
        let paths: Vec<&String> = files.texts.keys().collect();
        assert_eq!(paths, ["cases/one/experiment.yaml", "cases/two/experiment.yaml"]);
        let error = open(&[group, ("cases/two/experiment.yaml", "")]).unwrap_err().0;
        assert_eq!(error, "cases/two/experiment.yaml is also in cases/group.yaml");
        let error = open(&[("cases/group.yaml", "goal: cpu\n")]).unwrap_err().0;
        assert!(
            error.starts_with("cases/group.yaml:1: an entry is a name"),
            "{error}"
        );
    }

    #[test]
    fn templates_in_a_circle_are_refused() {
        let (_dir, library) = library(&[
            ("templates/a.yaml", "extends: b\n"),
            ("templates/b.yaml", "extends: a\n"),
            ("cases/one/experiment.yaml", "extends: a\n"),
        ]);
        assert!(library.cases().unwrap_err().0.contains("circle"));
    }

    #[test]
    fn globs() {
        assert!(glob("a*c", "abc") && glob("*", "x") && glob("a*b*", "axbz") && glob("abc", "abc"));
        assert!(!glob("a*c", "abd") && !glob("ab", "abc"));
    }
}
