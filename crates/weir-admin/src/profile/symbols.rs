//! Function names for addresses of this process, from the symbol tables of its mapped files.
//!
//! Reads only the tables, name by name, so a profile briefly needs a few megabytes instead of all debug information. The price: inlined
//! functions appear under their caller's name.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;

/// A piece of a file that is mapped as code.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mapping {
    pub start: usize,
    pub end: usize,
    pub offset: u64,
    pub path: String,
    /// A path that works even if the program on disk was replaced after the start.
    readable_at: String,
}

pub struct Symbolizer {
    mappings: Vec<Mapping>,
    tables: HashMap<String, Option<Table>>,
    names: HashMap<usize, Option<Name>>,
}

/// A function's readable name, and the linker's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Name {
    pub readable: String,
    pub mangled: String,
}

impl Symbolizer {
    pub fn of_this_process() -> io::Result<Self> {
        let maps = std::fs::read_to_string("/proc/self/maps")?;
        let own = std::fs::read_link("/proc/self/exe")?;
        Ok(Self {
            mappings: mappings(&maps, &own.to_string_lossy()),
            tables: HashMap::new(),
            names: HashMap::new(),
        })
    }

    pub fn mappings(&self) -> Vec<Mapping> {
        self.mappings.clone()
    }

    pub fn mapping_of(&self, address: usize) -> Option<usize> {
        self.mappings
            .iter()
            .position(|mapping| (mapping.start..mapping.end).contains(&address))
    }

    /// Whether the file of a mapping has names. A stripped file has none.
    pub fn has_names(&mut self, mapping: usize) -> bool {
        let mapping = self.mappings[mapping].readable_at.clone();
        self.table(&mapping).is_some()
    }

    /// The build id, which identifies separate symbols; empty if the file has none.
    pub fn build_id(&self, mapping: usize) -> String {
        build_id(&self.mappings[mapping].readable_at).unwrap_or_default()
    }

    /// The text for an address without a name: its file.
    pub fn place(&self, address: usize) -> String {
        match self.mapping_of(address) {
            Some(index) => {
                let path = &self.mappings[index].path;
                format!("[{}]", path.rsplit('/').next().unwrap_or(path))
            }
            None => format!("{address:#x}"),
        }
    }

    /// The function around an address.
    pub fn name(&mut self, address: usize) -> Option<Name> {
        if let Some(name) = self.names.get(&address) {
            return name.clone();
        }
        let name = self.look_up(address);
        self.names.insert(address, name.clone());
        name
    }

    fn look_up(&mut self, address: usize) -> Option<Name> {
        let mapping = self.mappings[self.mapping_of(address)?].clone();
        let table = self.table(&mapping.readable_at)?;
        let offset = (address - mapping.start) as u64 + mapping.offset;
        let mangled = table.name(table.address_of(offset)?)?;
        // Without the trailing hash, which differs from build to build.
        let readable = format!("{:#}", rustc_demangle::demangle(&mangled));
        Some(Name { readable, mangled })
    }

    fn table(&mut self, path: &str) -> Option<&Table> {
        self.tables
            .entry(path.to_owned())
            .or_insert_with(|| Table::read(path).ok().filter(|table| !table.functions.is_empty()))
            .as_ref()
    }

    /// Whether the address is in the allocator or in the standard library's calls to it.
    pub fn is_allocator(&mut self, address: usize) -> bool {
        const OURS: [&str; 12] = [
            "prof_",
            "je_",
            "_rjem_",
            "malloc",
            "calloc",
            "realloc",
            "do_rallocx",
            "rallocx",
            "imalloc",
            "__rust_",
            "__rustc",
            "posix_memalign",
        ];
        const PARTS: [&str; 4] = [
            "alloc::alloc::",
            "alloc::raw_vec::",
            "tikv_jemallocator",
            "GlobalAlloc",
        ];
        self.name(address).is_some_and(|Name { readable: name, .. }| {
            OURS.iter().any(|start| name.starts_with(start)) || PARTS.iter().any(|part| name.contains(part))
        })
    }
}

/// `own`: the program's path as shown by the kernel.
fn mappings(maps: &str, own: &str) -> Vec<Mapping> {
    maps.lines()
        .filter_map(|line| {
            let mut fields = line.splitn(6, ' ');
            let (start, end) = fields.next()?.split_once('-')?;
            let rights = fields.next()?;
            let offset = fields.next()?;
            let path = fields.nth(2)?.trim_start();
            (rights.contains('x') && path.starts_with('/')).then_some(())?;
            Some(Mapping {
                start: usize::from_str_radix(start, 16).ok()?,
                end: usize::from_str_radix(end, 16).ok()?,
                offset: u64::from_str_radix(offset, 16).ok()?,
                readable_at: if path == own { "/proc/self/exe" } else { path }.to_owned(),
                path: path.strip_suffix(" (deleted)").unwrap_or(path).to_owned(),
            })
        })
        .collect()
}

/// The functions of one 64-bit little-endian ELF file.
struct Table {
    file: File,
    /// Maps file offsets to the file's address space: offset, length, address.
    segments: Vec<(u64, u64, u64)>,
    /// Sorted by address.
    functions: Vec<Function>,
    names: (u64, u64),
}

struct Function {
    address: u64,
    size: u64,
    name: u32,
}

/// Larger tables are not read in a running process.
const TABLE_BYTES_MAX: u64 = 256 << 20;

impl Table {
    fn read(path: &str) -> io::Result<Self> {
        let (file, head) = open(path)?;
        let segments = segments(&file, &head, 1)?;
        let sections = bytes(
            &file,
            number(&head, 40, 8),
            number(&head, 58, 2).saturating_mul(number(&head, 60, 2)),
        )?;
        let size = (number(&head, 58, 2) as usize).max(64);
        let sections: Vec<&[u8]> = sections.chunks_exact(size).collect();
        // The full table if the file still has it, otherwise the dynamic linker's.
        let find = |kind| sections.iter().find(|section| number(section, 4, 4) == kind);
        let table = find(2).or_else(|| find(11)).ok_or_else(no_elf)?;
        let names = sections.get(number(table, 40, 4) as usize).ok_or_else(no_elf)?;
        let symbols = bytes(&file, number(table, 24, 8), number(table, 32, 8))?;
        let mut functions: Vec<Function> = symbols
            .chunks_exact(24)
            .filter(|symbol| symbol[4] & 0xf == 2 && number(symbol, 8, 8) != 0)
            .map(|symbol| Function {
                address: number(symbol, 8, 8),
                size: number(symbol, 16, 8),
                name: number(symbol, 0, 4) as u32,
            })
            .collect();
        functions.sort_by_key(|function| function.address);
        let names = (number(names, 24, 8), number(names, 32, 8));
        Ok(Self {
            file,
            segments,
            functions,
            names,
        })
    }

    fn address_of(&self, offset: u64) -> Option<u64> {
        let (start, _, address) = self
            .segments
            .iter()
            .find(|(start, length, _)| offset.checked_sub(*start).is_some_and(|o| o < *length))?;
        Some(offset - start + address)
    }

    fn name(&self, address: u64) -> Option<String> {
        let next = self
            .functions
            .partition_point(|function| function.address <= address);
        let function = &self.functions[next.checked_sub(1)?];
        // Hand-written code often has no size.
        if function.size > 0 && address >= function.address + function.size {
            return None;
        }
        let start = u64::from(function.name);
        let length = self.names.1.checked_sub(start)?.min(2048);
        let text = bytes(&self.file, self.names.0 + start, length).ok()?;
        let end = text.iter().position(|byte| *byte == 0).unwrap_or(text.len());
        Some(String::from_utf8_lossy(&text[..end]).into_owned())
    }
}

fn no_elf() -> io::Error {
    io::Error::other("not an ELF file of this kind")
}

/// The file and its header.
fn open(path: &str) -> io::Result<(File, Vec<u8>)> {
    let file = File::open(path)?;
    let head = bytes(&file, 0, 64)?;
    match head.starts_with(b"\x7fELF\x02\x01") {
        true => Ok((file, head)),
        false => Err(no_elf()),
    }
}

/// Segments of a kind: offset, length, address.
fn segments(file: &File, head: &[u8], kind: u64) -> io::Result<Vec<(u64, u64, u64)>> {
    let size = number(head, 54, 2).max(56);
    let table = bytes(
        file,
        number(head, 32, 8),
        size.saturating_mul(number(head, 56, 2)),
    )?;
    Ok(table
        .chunks_exact(size as usize)
        .filter(|segment| number(segment, 0, 4) == kind)
        .map(|segment| {
            (
                number(segment, 8, 8),
                number(segment, 32, 8),
                number(segment, 16, 8),
            )
        })
        .collect())
}

/// In hexadecimal, from the notes of the file. A note has the lengths of name and content, a type, name and content, padded to 4 bytes.
fn build_id(path: &str) -> io::Result<String> {
    const GNU_BUILD_ID: u64 = 3;
    let (file, head) = open(path)?;
    for (offset, length, _) in segments(&file, &head, 4)? {
        let notes = bytes(&file, offset, length)?;
        let mut notes = notes.as_slice();
        while notes.len() > 12 {
            let name_length = number(notes, 0, 4) as usize;
            let start = 12 + name_length.next_multiple_of(4);
            let end = start.saturating_add(number(notes, 4, 4) as usize);
            let content = notes.get(start..end).ok_or_else(no_elf)?;
            if number(notes, 8, 4) == GNU_BUILD_ID && notes[12..].starts_with(b"GNU\0") {
                return Ok(content.iter().map(|byte| format!("{byte:02x}")).collect());
            }
            notes = notes.get(end.next_multiple_of(4)..).unwrap_or_default();
        }
    }
    Err(no_elf())
}

fn bytes(file: &File, offset: u64, length: u64) -> io::Result<Vec<u8>> {
    if length > TABLE_BYTES_MAX {
        return Err(io::Error::other("a table is too long"));
    }
    let mut bytes = vec![0; length as usize];
    file.read_exact_at(&mut bytes, offset)?;
    Ok(bytes)
}

/// A little-endian number; 0 beyond the end.
fn number(bytes: &[u8], at: usize, length: usize) -> u64 {
    let field = bytes.get(at..at + length).unwrap_or_default();
    field
        .iter()
        .rev()
        .fold(0, |value, byte| value << 8 | u64::from(*byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[inline(never)]
    fn a_function_with_a_name() {}

    #[test]
    fn own_functions_have_names() {
        let mut symbols = Symbolizer::of_this_process().unwrap();
        let address = a_function_with_a_name as *const () as usize;
        let name = symbols.name(address).unwrap().readable;
        assert!(name.ends_with("a_function_with_a_name"), "{name}");
        assert_eq!(symbols.name(1), None);
        assert!(symbols.mapping_of(address).is_some());
    }

    #[test]
    fn a_file_without_its_symbols_has_no_names_and_a_build_id() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("stripped");
        let path = path.to_str().unwrap();
        let own = std::env::current_exe().unwrap();
        let stripped = std::process::Command::new("objcopy")
            .args([
                "--strip-all".as_ref(),
                "--remove-section=.dynsym".as_ref(),
                own.as_os_str(),
                path.as_ref(),
            ])
            .status()
            .unwrap();
        assert!(stripped.success());
        let mapping = |path: &str| Mapping {
            start: 0,
            end: 1,
            offset: 0,
            path: path.to_owned(),
            readable_at: path.to_owned(),
        };
        let mut symbols = Symbolizer {
            mappings: vec![mapping(path), mapping("/proc/self/exe"), mapping("/etc/passwd")],
            tables: HashMap::new(),
            names: HashMap::new(),
        };
        assert_eq!(
            [0, 1, 2].map(|index| symbols.has_names(index)),
            [false, true, false]
        );
        let output = std::process::Command::new("readelf")
            .args(["-n", path])
            .output()
            .unwrap();
        let id = symbols.build_id(0);
        assert!(
            String::from_utf8_lossy(&output.stdout).contains(&format!("Build ID: {id}\n")),
            "{id}"
        );
        assert_eq!(symbols.build_id(1), id, "it stays when symbols are put apart");
        assert_eq!(symbols.build_id(2), "");
    }

    #[test]
    fn files_that_are_not_elf_are_refused() {
        assert!(Table::read("/etc/passwd").is_err());
        assert!(Table::read("/nowhere").is_err());
        assert!(Table::read(env!("CARGO_MANIFEST_DIR")).is_err());
    }
}
