#!/usr/bin/env python3
"""Rules about the shape of the Rust code that no compiler checks.

Only production code counts: neither tests, nor items under `#[cfg(test)]`.

* No file has more than 700 lines, no function more than 100.
* No struct below `crates/` has more than 15 fields: more fields mean more than one responsibility.
* Results say what failed: no `Result<_, String>`.
* Inside the crates `weir-agent` and `weir-process`, a module does not import one that is above it.
* A name of a public type stands for one thing: at most 12 % of them are in more than one crate.
"""
import os
import re
import subprocess
import sys

FILE_LINES_MAX = 700
FUNCTION_LINES_MAX = 100
FIELDS_MAX = 15
SHARED_NAMES_MAX = 0.12
# From the bottom to the top: each may import earlier ones, and those of its own line.
LAYERS = {
    "weir-agent": [
        "bucket_marks budget clients life rules state supervision usage",
        "book_times hand_over pipeline",
        "books history ledger rates",
    ],
    "weir-process": [
        "access channel columns delivery explain health log origins scrape signals starter state_dir",
        "continuity kept listeners relay taps",
        "column_listeners division ending outputs workers",
        "view",
        "hand_over_target history reporting",
        "agent",
        "hand_over_source",
    ],
}

RAW = re.compile(r'b?r(#*)"')
CHARACTER = re.compile(r"'(\\x..|\\u\{[^}]*\}|\\.|[^\\'])'", re.S)
TEST_ITEM = re.compile(r"#\[cfg\((test|all\(test[^\]]*)\)\]")
TEST_MODULE = re.compile(r"\s*(?:#\[[^\]]*\]\s*)*(?:pub(?:\([^)]*\))?\s+)?mod\s+(\w+)\s*;")
FUNCTION = re.compile(r"\bfn\s+(\w+)")
STRUCT = re.compile(r"\bstruct\s+(\w+)[^;{(]*\{")
PUBLIC_TYPE = re.compile(r"\bpub\s+(?:struct|enum|trait|union)\s+(\w+)")
FIELD = re.compile(r"^\s+(?:pub(?:\([^)]*\))?\s+)?[a-z_]\w*\s*:", re.M)
RESULT = re.compile(r"\bResult<")
IMPORT = re.compile(r"\bcrate::(\w+)")


def blanked(text):
    """The text with strings and comments blank, and all lines in place."""
    out, at = list(text), 0

    def blank(start, end):
        out[start:end] = [c if c == "\n" else " " for c in text[start:end]]

    while at < len(text):
        if text.startswith("//", at):
            end = text.find("\n", at)
            end = len(text) if end < 0 else end
        elif text.startswith("/*", at):
            end = text.find("*/", at + 2) + 2
        elif (raw := RAW.match(text, at)) and not (at and (text[at - 1].isalnum() or text[at - 1] == "_")):
            end = text.find('"' + raw.group(1), raw.end()) + 1 + len(raw.group(1))
        elif text[at] == '"':
            end = at + 1
            while text[end] != '"':
                end += 2 if text[end] == "\\" else 1
            end += 1
        elif text[at] == "'" and (character := CHARACTER.match(text, at)):
            end = character.end()
        else:
            at += 1
            continue
        blank(at, end)
        at = end
    return "".join(out)


def closing(text, at):
    """The position after the brace that closes the one before `at`."""
    depth = 1
    while depth:
        depth += {"{": 1, "}": -1}.get(text[at], 0)
        at += 1
    return at


def item_end(text, at):
    """The position after the item that begins at `at`."""
    depth = 0
    while at < len(text):
        c = text[at]
        depth += {"(": 1, "[": 1, ")": -1, "]": -1}.get(c, 0)
        at += 1
        if c == "{":
            at = closing(text, at)
            if depth == 0:
                return at
        elif depth == 0 and c in ";,":
            return at
    return at


def body(text, at):
    """The position after the brace that opens the body of the function whose name ends at `at`, if it has a body."""
    depth = 0
    for place in range(at, len(text)):
        c = text[place]
        depth += {"(": 1, "[": 1, ")": -1, "]": -1}.get(c, 0)
        if depth == 0 and c in "{;":
            return place + 1 if c == "{" else None
    return None


class Source:
    def __init__(self, path):
        self.path = path
        with open(path, encoding="utf-8") as file:
            text = file.read()
        code = blanked(text)
        self.lines, self.test_modules = text.count("\n"), []
        for test in reversed(list(TEST_ITEM.finditer(code))):
            end = item_end(code, test.end())
            if module := TEST_MODULE.match(code[test.end() : end]):
                self.test_modules.append(self.beside(module.group(1)))
            item = code[test.start() : end]
            self.lines -= item.count("\n") + 1
            code = code[: test.start()] + re.sub(r"[^\n]", " ", item) + code[end:]
        self.code = code

    def beside(self, module):
        folder, name = os.path.split(self.path)
        stem = name[:-3]
        return f"{folder}/{module}" if stem in ("mod", "lib", "main") else f"{folder}/{stem}/{module}"

    def line(self, at):
        return self.code.count("\n", 0, at) + 1

    def errors(self):
        if self.lines > FILE_LINES_MAX:
            yield f"{self.path}: {self.lines} lines; {FILE_LINES_MAX} are allowed"
        yield from self.long_functions()
        if self.path.startswith("crates/"):
            yield from self.wide_structs()
        yield from self.string_errors()
        yield from self.upward_imports()

    def string_errors(self):
        for result in RESULT.finditer(self.code):
            depth, at, comma = 1, result.end(), result.end()
            while depth:
                c = self.code[at]
                # Not the head of an arrow.
                depth += {"<": 1, "(": 1, ")": -1}.get(c, -1 if c == ">" and self.code[at - 1] not in "-=" else 0)
                comma = at if c == "," and depth == 1 else comma
                at += 1
            if self.code[comma : at - 1].strip(", \n") == "String" and comma > result.end():
                yield f"{self.path}:{self.line(result.start())}: an error that is a String; give it a type"

    def long_functions(self):
        for function in FUNCTION.finditer(self.code):
            start = body(self.code, function.end())
            if start is None:
                continue
            lines = self.line(closing(self.code, start) - 1) - self.line(function.start()) + 1
            if lines > FUNCTION_LINES_MAX:
                where = f"{self.path}:{self.line(function.start())}"
                yield f"{where}: {function.group(1)} has {lines} lines; {FUNCTION_LINES_MAX} are allowed"

    def wide_structs(self):
        for struct in STRUCT.finditer(self.code):
            fields = FIELD.findall(self.code[struct.end() : closing(self.code, struct.end())])
            name = struct.group(1)
            if len(fields) > FIELDS_MAX:
                where = f"{self.path}:{self.line(struct.start())}"
                yield f"{where}: {name} has {len(fields)} fields; {FIELDS_MAX} are allowed"

    def upward_imports(self):
        crate, _, file = self.path.removeprefix("crates/").partition("/src/")
        layers = LAYERS.get(crate, [])
        layer = {module: number for number, line in enumerate(layers) for module in line.split()}
        module = file.split("/")[0].removesuffix(".rs")
        for found in IMPORT.finditer(self.code):
            imported = found.group(1)
            if layer.get(imported, -1) > layer.get(module, len(layers)):
                yield f"{self.path}:{self.line(found.start())}: {module} imports {imported}, which is above it"


def shared_names(sources):
    crates = {}
    for source in sources:
        for name in PUBLIC_TYPE.findall(source.code):
            crates.setdefault(name, set()).add(source.path.split("/")[1])
    shared = {name: of for name, of in crates.items() if len(of) > 1}
    if len(shared) <= SHARED_NAMES_MAX * len(crates):
        return []
    listed = "\n".join(f"  {name}: {', '.join(sorted(of))}" for name, of in sorted(shared.items()))
    return [f"{len(shared)} of {len(crates)} public types have the name of one in another crate; give a new one a name of its own:\n{listed}"]


def main():
    listed = subprocess.run(["git", "ls-files", "crates/*.rs", "rig/*.rs"], capture_output=True, text=True, check=True)
    paths = [path for path in listed.stdout.split() if "/src/" in path and os.path.exists(path)]
    sources = [Source(path) for path in paths]
    tests = tuple(module for source in sources for module in source.test_modules)
    is_test = lambda path: path.removesuffix(".rs") in tests or path.startswith(tuple(f"{test}/" for test in tests))
    production = [source for source in sources if not is_test(source.path)]
    errors = [error for source in production for error in source.errors()] + shared_names(production)
    print("\n".join(errors)) if errors else None
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
