//! CPU and heap profiles in the format of `go tool pprof`, with function names if the program has its symbols, so that a profile can be
//! read without other files.

use std::collections::HashMap;
use std::io;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use prost::Message as _;

use weir_system::sys;

mod heap_dump;
mod proto;
mod symbols;

use symbols::{Name, Symbolizer};

/// Samples per second of CPU time and thread.
const SAMPLES_PER_SECOND: u32 = 100;

/// Interval of collecting samples from the threads.
const DRAIN_INTERVAL: Duration = Duration::from_millis(100);

/// Maximum duration of a CPU profile.
pub const SECONDS_MAX: u64 = 600;

/// Counts of stacks of one profile.
type Counts = HashMap<sys::cpu::Stack, u64>;

/// Takes a CPU profile of the process. `None` if another one is in progress. Dropping the future ends it.
pub async fn cpu(duration: Duration) -> io::Result<Option<Vec<u8>>> {
    let Some(mut session) = sys::cpu::Session::start(SAMPLES_PER_SECOND)? else {
        return Ok(None);
    };
    let started = SystemTime::now();
    let mut counts = Counts::new();
    let mut names = HashMap::new();
    let end = tokio::time::Instant::now() + duration;
    loop {
        let now = tokio::time::Instant::now();
        let wake = end.min(now + DRAIN_INTERVAL);
        tokio::time::sleep_until(wake).await;
        session.drain(|stack| {
            names
                .entry(stack.thread)
                .or_insert_with(|| thread_name(stack.thread));
            *counts.entry(stack).or_default() += 1;
        });
        if wake == end {
            break;
        }
        session.watch_new_threads()?;
    }
    let lost = session.lost();
    drop(session);
    let encoded =
        tokio::task::spawn_blocking(move || encode_cpu(started, duration, &counts, &names, lost)).await;
    encoded.map_err(io::Error::other)?.map(Some)
}

fn thread_name(thread: i32) -> String {
    let name = std::fs::read_to_string(format!("/proc/self/task/{thread}/comm")).unwrap_or_default();
    name.trim_end().to_owned()
}

fn encode_cpu(
    started: SystemTime,
    duration: Duration,
    counts: &Counts,
    names: &HashMap<i32, String>,
    lost: u64,
) -> io::Result<Vec<u8>> {
    let mut builder = Builder::new(&[("samples", "count"), ("cpu", "nanoseconds")], started)?;
    let period = i64::from(1_000_000_000 / SAMPLES_PER_SECOND);
    builder.profile.duration_nanos = duration.as_nanos() as i64;
    builder.profile.period = period;
    builder.profile.period_type = Some(builder.value_type("cpu", "nanoseconds"));
    for (stack, count) in counts {
        // The first address is exact; the others point after the call.
        let frames = stack
            .frames
            .iter()
            .enumerate()
            .map(|(depth, frame)| frame - usize::from(depth > 0));
        let locations = builder.locations(frames);
        let name = names.get(&stack.thread).map_or("", String::as_str);
        let label = proto::Label {
            key: builder.text("thread"),
            text: builder.text(name),
            number: 0,
        };
        let count = *count as i64;
        builder.profile.sample.push(proto::Sample {
            location_id: locations,
            value: vec![count, count * period],
            label: vec![label],
        });
    }
    if lost > 0 {
        let comment = builder.text(&format!("{lost} samples were lost"));
        builder.profile.comment.push(comment);
    }
    Ok(builder.finish())
}

/// The default view of a heap profile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeapView {
    /// Live allocations.
    InUse,
    /// All allocations since the start.
    Allocated,
}

/// The heap by place of allocation, live and since the start, from the allocator's samples.
pub fn heap(view: HeapView) -> io::Result<Vec<u8>> {
    let dump = sys::heap::dump()?;
    let dump = heap_dump::parse(&dump).map_err(io::Error::other)?;
    let mut builder = Builder::new(
        &[
            ("alloc_objects", "count"),
            ("alloc_space", "bytes"),
            ("inuse_objects", "count"),
            ("inuse_space", "bytes"),
        ],
        SystemTime::now(),
    )?;
    builder.profile.period = dump.sample_bytes as i64;
    builder.profile.period_type = Some(builder.value_type("space", "bytes"));
    builder.profile.default_sample_type = builder.text(match view {
        HeapView::InUse => "inuse_space",
        HeapView::Allocated => "alloc_space",
    });
    for sample in &dump.samples {
        let (objects, bytes) = sample.live.scaled(dump.sample_bytes);
        let (all_objects, all_bytes) = sample.total.scaled(dump.sample_bytes);
        let frames: Vec<usize> = sample
            .frames
            .iter()
            .map(|frame| frame.saturating_sub(1))
            .collect();
        // Skips the allocator's own frames; its callers matter.
        let first = frames
            .iter()
            .position(|frame| !builder.symbols.is_allocator(*frame))
            .unwrap_or(0);
        let locations = builder.locations(frames[first..].iter().copied());
        let value = vec![all_objects, all_bytes, objects, bytes];
        builder.profile.sample.push(proto::Sample {
            location_id: locations,
            value,
            label: Vec::new(),
        });
    }
    Ok(builder.finish())
}

/// Builds a profile with unique texts, functions and locations.
struct Builder {
    profile: proto::Profile,
    symbols: Symbolizer,
    texts: HashMap<String, i64>,
    functions: HashMap<String, u64>,
    locations: HashMap<usize, u64>,
}

impl Builder {
    fn new(types: &[(&str, &str)], time: SystemTime) -> io::Result<Self> {
        let mut builder = Self {
            profile: proto::Profile::default(),
            symbols: Symbolizer::of_this_process()?,
            texts: HashMap::new(),
            functions: HashMap::new(),
            locations: HashMap::new(),
        };
        // The first text of the table must be empty.
        builder.text("");
        for (name, unit) in types {
            let value_type = builder.value_type(name, unit);
            builder.profile.sample_type.push(value_type);
        }
        builder.profile.time_nanos = time
            .duration_since(UNIX_EPOCH)
            .map_or(0, |time| time.as_nanos() as i64);
        for (index, mapping) in builder.symbols.mappings().into_iter().enumerate() {
            let filename = builder.text(&mapping.path);
            let build_id = builder.symbols.build_id(index);
            let build_id = builder.text(&build_id);
            let has_functions = builder.symbols.has_names(index);
            builder.profile.mapping.push(proto::Mapping {
                id: index as u64 + 1,
                memory_start: mapping.start as u64,
                memory_limit: mapping.end as u64,
                file_offset: mapping.offset,
                filename,
                build_id,
                has_functions,
            });
        }
        Ok(builder)
    }

    fn text(&mut self, text: &str) -> i64 {
        if let Some(index) = self.texts.get(text) {
            return *index;
        }
        let index = self.profile.string_table.len() as i64;
        self.profile.string_table.push(text.to_owned());
        self.texts.insert(text.to_owned(), index);
        index
    }

    fn value_type(&mut self, name: &str, unit: &str) -> proto::ValueType {
        proto::ValueType {
            name: self.text(name),
            unit: self.text(unit),
        }
    }

    fn locations(&mut self, frames: impl Iterator<Item = usize>) -> Vec<u64> {
        frames.map(|address| self.location(address)).collect()
    }

    fn location(&mut self, address: usize) -> u64 {
        if let Some(id) = self.locations.get(&address) {
            return *id;
        }
        let mapping = self.symbols.mapping_of(address);
        let line = self.line(address, mapping);
        let id = self.profile.location.len() as u64 + 1;
        self.profile.location.push(proto::Location {
            id,
            mapping_id: mapping.map_or(0, |index| index as u64 + 1),
            address: address as u64,
            line: line.into_iter().collect(),
        });
        self.locations.insert(address, id);
        id
    }

    /// `None` if the symbols are in another file: the reader of the profile finds them by the build id.
    fn line(&mut self, address: usize, mapping: Option<usize>) -> Option<proto::Line> {
        if mapping.is_some_and(|index| !self.symbols.has_names(index)) {
            return None;
        }
        let name = self.symbols.name(address).unwrap_or_else(|| {
            let place = self.symbols.place(address);
            Name {
                readable: place.clone(),
                mangled: place,
            }
        });
        let function_id = self.function(name);
        Some(proto::Line { function_id, line: 0 })
    }

    fn function(&mut self, name: Name) -> u64 {
        if let Some(id) = self.functions.get(&name.mangled) {
            return *id;
        }
        let id = self.profile.function.len() as u64 + 1;
        // Two different names show the reader that the name is already demangled; otherwise it would remove everything in angle brackets.
        let function = proto::Function {
            id,
            name: self.text(&name.readable),
            system_name: self.text(&name.mangled),
        };
        self.profile.function.push(function);
        self.functions.insert(name.mangled, id);
        id
    }

    fn finish(self) -> Vec<u8> {
        self.profile.encode_to_vec()
    }
}
