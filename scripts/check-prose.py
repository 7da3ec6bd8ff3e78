#!/usr/bin/env python3
"""Words that docs/style.md bans in pages and comments, broken links, and command blocks that no test executes. Generated pages contain the help texts."""
import re
import subprocess
import sys
from pathlib import Path

STYLE = Path("docs/style.md")
LINK = re.compile(r"\]\(([^()\s]+)\)")
HEADING = re.compile(r"^#+ +(.*)$", re.M)
FENCE = re.compile(r"^ *```(\w*)\n(.*?)^ *```$", re.S | re.M)
INDENTED = re.compile(r"(?<=\n\n)    +(?![ *-]|\d+\.).*")
MARKER = re.compile(r" *<!-- (?:not executed: \S.*|executed by (\S+)) -->")
COMMAND = re.compile(r"^ *(?:\$ |weir |curl |sudo |make )", re.M)
# crates/weir/tests/executed_pages.rs runs the first and passes the second to `weir check`.
EXECUTED = {"console", "yaml"}
CODE = re.compile(r"```.*?```|`[^`\n]*`", re.S)
SLASHES = re.compile(r"(?:^|[^:\"'\\])//+!?(.*)")
HASH = re.compile(r"(?:^|\s)#+ (.*)")
BLOCK = re.compile(r"/\*+(.*?)\*/", re.S)
# A comment begins with the thing, not with a clause that asks for it.
CLAUSE = re.compile(r"(What|Who|Whoever|How|Those|Here) (?!.*\?)")
# A comment in Rust, Go, C, assembler, TypeScript and JavaScript; in Python, Ruby, shell, YAML, TOML, make and systemd's files, and in scripts without a suffix.
COMMENTS = {
    **dict.fromkeys((".rs", ".go", ".c", ".s", ".ts", ".tsx", ".mjs", ".js"), SLASHES),
    **dict.fromkeys((".py", ".rb", ".rbs", ".gemspec", "Rakefile", "Gemfile", ".sh", ".yaml", ".yml", ".toml", ".service", ".socket", ".conf", "Makefile", "run"), HASH),
}
# Comments between /* and */ are read too.
BLOCKS = {".go", ".c", ".css", ".js", ".mjs", ".ts", ".tsx"}


def kind(file):
    """The suffix of a file, or its name if it has none."""
    return file.suffix or file.name


def banned():
    """The left column of the table: each phrase as a pattern that also crosses the end of a line."""
    for row in re.findall(r"^\| ([^|]+) \| [^|]+ \|$", STYLE.read_text(), re.M)[2:]:
        for phrase in row.split(", "):
            words = re.sub(r" \(.*\)", "", phrase).split()
            if "(" in phrase:
                continue  # depends on the meaning: for reviewers
            yield phrase, re.compile(r"\b" + r"\s+".join(map(re.escape, words)) + r"\b", re.I)


def anchors(page):
    """Anchors of the headings, as forges derive them; a repeated name gets a number."""
    names = []
    for title in HEADING.findall(re.sub(r"```.*?```", "", page.read_text(), flags=re.S)):
        text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title).replace("`", "")
        name = re.sub(r"[^\w\- ]", "", text.lower()).strip().replace(" ", "-")
        names.append(f"{name}-{names.count(name)}" if name in names else name)
    return names


def line_of(text, position):
    return text.count("\n", 0, position) + 1


def check(page, phrases):
    text = page.read_text()
    prose = CODE.sub(lambda code: re.sub(r"[^\n]", " ", code[0]), text)
    if page != STYLE and page.name != "CHANGELOG.md":
        for phrase, pattern in phrases:
            for found in pattern.finditer(prose):
                yield f"{page}:{line_of(text, found.start())}: '{phrase}': docs/style.md has the word to use"
    for found in LINK.finditer(prose):
        target, _, anchor = found[1].partition("#")
        if re.match(r"[a-z]+:", target):
            continue
        file = (page.parent / target) if target else page
        where = f"{page}:{line_of(text, found.start())}"
        if not file.exists():
            yield f"{where}: there is no {target}"
        elif anchor and file.suffix == ".md" and anchor not in anchors(file):
            yield f"{where}: {target or page.name} has no heading for #{anchor}"


def answered(page):
    """A recorded measurement begins with the question and its answer."""
    after = page.read_text().split("\n", 3)[2:3]
    if not after or after[0].startswith(("Recorded by", "#", "|")):
        yield f"{page}:3: the answer is missing: one sentence with the figures, before how they were recorded"


def comments(file, phrases):
    """Banned words in comments. Code becomes blank, so a phrase may cross the end of a line."""
    content, mark, lines = file.read_text(), COMMENTS.get(kind(file)), []
    for block in BLOCK.finditer(content) if kind(file) in BLOCKS else ():
        where, said = f"{file}:{line_of(content, block.start())}", re.sub(r"\n[ *]+", "\n", block[1]).strip()
        if clause := CLAUSE.match(said):
            yield f"{where}: a comment begins with '{clause[1]}': begin with the thing it is about (docs/style.md)"
        for phrase, pattern in phrases:
            if pattern.search(said):
                yield f"{where}: '{phrase}': docs/style.md has the word to use"
    for line in content.split("\n") if mark else ():
        found = mark.search(line)
        lines.append(re.sub(r"`[^`]*`", " ` ", found[1]) if found else " ` ")
        clause = CLAUSE.match(found[1].lstrip()) if found and (len(lines) < 2 or lines[-2] == " ` ") else None
        if clause:
            yield f"{file}:{len(lines)}: a comment begins with '{clause[1]}': begin with the thing it is about (docs/style.md)"
    text = "\n".join(lines)
    for phrase, pattern in phrases:
        for found in pattern.finditer(text):
            yield f"{file}:{line_of(text, found.start())}: '{phrase}': docs/style.md has the word to use"


def blocks(page, text):
    """Each block is executed by a test, or the line before it has the reason why not. A mark below the title covers the whole page."""
    lines = text.split("\n")
    whole = MARKER.fullmatch(lines[2]) if len(lines) > 2 else None
    for fence in FENCE.finditer(text):
        line = line_of(text, fence.start())
        marker = MARKER.fullmatch(lines[line - 2]) or whole
        if marker:
            if marker[1] and not (Path(marker[1]).exists() and page.name in Path(marker[1]).read_text()):
                yield f"{page}:{line}: {marker[1]} does not execute this page"
        elif fence[1] == "text":
            if COMMAND.search(fence[2]):
                yield f"{page}:{line}: a command in a block of text: make it `console`, or say above why it is not executed"
        elif fence[1] == "usage" and page.name == "command-line.md":
            continue  # generated from the commands
        elif fence[1] not in EXECUTED:
            yield f"{page}:{line}: no test executes this block: make it `console` or `text`, or say above why: <!-- not executed: ... -->"
    for found in INDENTED.finditer(FENCE.sub(lambda fence: re.sub(r"[^\n]", "x", fence[0]), text)):
        yield f"{page}:{line_of(text, found.start())}: an indented block: fence it and name its language"


def main():
    phrases = list(banned())
    assert len(phrases) >= 10, "the table of docs/style.md was not found"
    pages = subprocess.run(["git", "ls-files", "*.md"], capture_output=True, text=True, check=True).stdout.split()
    problems = [problem for page in map(Path, pages) for problem in check(page, phrases)]
    users = [page for page in map(Path, pages) if page.parts[0] in ("README.md", "docs")]
    problems += [problem for page in users for problem in blocks(page, page.read_text())]
    problems += [problem for page in users if page.parent == Path("docs/benchmarks") for problem in answered(page)]
    files = subprocess.run(["git", "ls-files"], capture_output=True, text=True, check=True).stdout.split("\n")
    known = COMMENTS.keys() | BLOCKS
    sources = [file for file in map(Path, files) if kind(file) in known and file.name != Path(__file__).name and file.is_file()]
    problems += [problem for file in sources for problem in comments(file, phrases)]
    print("\n".join(problems), end="\n" if problems else "")
    sys.exit(bool(problems))


if __name__ == "__main__":
    main()
