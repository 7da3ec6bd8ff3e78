#!/usr/bin/env python3
"""Builds a static site of all pages, with a search that needs no server, and checks every link in it.

    docs/site/build.py [DIRECTORY]      default: dist/site

The site has the folders of the repository, so links stay as they are; cmark-gfm (Debian) renders the same dialect as forges. Open
DIRECTORY/index.html; no page loads anything from another host.
"""

import html
import json
import os
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

ROOT = Path(__file__).resolve().parent.parent.parent
HERE = Path(__file__).resolve().parent
HEADING = re.compile(r"<h([1-6])>(.*?)</h\1>", re.S)
LINK = re.compile(r'\b(href|src|srcset)="([^"]*)"')
TAG = re.compile(r"<[^>]*>")
COMMENT = re.compile(r"<!--.*?-->", re.S)
LAYOUT = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>{title}</title>
<link rel="stylesheet" href="{root}site.css">
<script src="{root}search.js" defer></script>
<header><a href="{root}index.html">weir</a> <input type="search" placeholder="Search" aria-label="Search" data-root="{root}"></header>
<nav aria-label="Pages">{nav}</nav>
<main><div id="found" hidden></div>
<article>
{body}</article></main>
</html>
"""


def tracked():
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    return [Path(name) for name in listed if (ROOT / name).is_file()]


def place(page):
    """The file of a page in the site: a README is the index of its folder."""
    return page.with_name("index.html") if page.name == "README.md" else page.with_suffix(".html")


def relative(target, page):
    return os.path.relpath(target, place(page).parent)


def rendered(page):
    command = ["cmark-gfm", "--unsafe", "-e", "table", "-e", "autolink", "-e", "strikethrough"]
    text = COMMENT.sub("", (ROOT / page).read_text())
    return subprocess.run(command, input=text, capture_output=True, text=True, check=True).stdout


def plain(markup):
    return " ".join(html.unescape(TAG.sub(" ", markup)).split())


def with_anchors(body):
    """The text with an id for each heading, as forges derive them; and the sections: id, heading, text."""
    names, sections, end = [], [], 0
    out = []
    for found in HEADING.finditer(body):
        title = html.unescape(TAG.sub("", found[2])).strip()
        name = re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")
        anchor = f"{name}-{names.count(name)}" if name in names else name
        names.append(name)
        if sections:
            sections[-1][2] = plain(body[end : found.start()])
        sections.append([anchor, title, ""])
        out.append(f'{body[end : found.start()]}<h{found[1]} id="{html.escape(anchor)}">{found[2]}</h{found[1]}>')
        end = found.end()
    if sections:
        sections[-1][2] = plain(body[end:])
    return "".join(out) + body[end:], sections


class Site:
    def __init__(self, output):
        files = tracked()
        self.output, self.files = output, set(files)
        self.pages = [file for file in files if file.suffix == ".md"]
        self.wanted = set()

    def link(self, page, value):
        """A link to a page of the repository leads to the page of the site; other files are copied. `None`: a folder without pages."""
        if not value or re.match(r"[a-z]+:", value) or value.startswith("#"):
            return value
        target, _, anchor = value.partition("#")
        file = Path(os.path.normpath(page.parent / unquote(target)))
        if file / "README.md" in self.files:
            file = file / "README.md"
        if file in self.files and file.suffix == ".md":
            return relative(place(file), page) + (f"#{anchor}" if anchor else "")
        if file in self.files:
            self.wanted.add(file)
        return None if (ROOT / file).is_dir() else value

    def body(self, page):
        def attribute(found):
            value = self.link(page, html.unescape(found[2]))
            return "" if value is None else f'{found[1]}="{html.escape(value)}"'

        return with_anchors(LINK.sub(attribute, rendered(page)))

    def navigation(self):
        """The links of docs/README.md, by its headings: (heading, [(text, page), ...])."""
        index = Path("docs/README.md")
        for found in re.finditer(r"^## ([^\n]*)\n(.*?)(?=^## |\Z)", (ROOT / index).read_text(), re.S | re.M):
            links = re.findall(r"\[([^\]]*)\]\(([^)#\s]+\.md)\)", found[2])
            yield found[1], [(text, Path(os.path.normpath(index.parent / target))) for text, target in links]

    def nav(self, page, groups):
        out = []
        for title, links in groups:
            items = "".join(
                f'<li><a href="{relative(place(to), page)}"{" aria-current=page" if to == page else ""}>{html.escape(text)}</a></li>'
                for text, to in links
            )
            is_open = " open" if any(to == page for _, to in links) or page.name == "README.md" else ""
            out.append(f"<details{is_open}><summary>{html.escape(title)}</summary><ul>{items}</ul></details>")
        return "".join(out)

    def build(self):
        shutil.rmtree(self.output, ignore_errors=True)
        self.output.mkdir(parents=True)
        groups, index = list(self.navigation()), []
        for page in self.pages:
            body, sections = self.body(page)
            title = sections[0][1] if sections else page.stem
            root = "../" * (len(place(page).parts) - 1)
            self.write(place(page), LAYOUT.format(title=html.escape(title), root=root, nav=self.nav(page, groups), body=body))
            index += [[f"{place(page)}#{anchor}", title, heading, text] for anchor, heading, text in sections]
        for file in self.wanted:
            (self.output / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / file, self.output / file)
        shutil.copyfile(HERE / "site.css", self.output / "site.css")
        search = (HERE / "search.js").read_text()
        self.write(Path("search.js"), f"const SECTIONS = {json.dumps(index, ensure_ascii=False)};\n{search}")

    def write(self, file, text):
        (self.output / file).parent.mkdir(parents=True, exist_ok=True)
        (self.output / file).write_text(text)


class Links(HTMLParser):
    """The ids and the links of a built page."""

    def __init__(self, text):
        super().__init__()
        self.ids, self.links = set(), []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        for name, value in attributes:
            if name == "id":
                self.ids.add(value)
            elif name in ("href", "src", "srcset") and value:
                self.links.append((tag, value))


def broken(output):
    """Links of the built pages that lead nowhere, and everything that a page would load from another host."""
    pages = {file: Links(file.read_text()) for file in output.rglob("*.html")}
    for file, page in pages.items():
        for tag, value in page.links:
            where = file.relative_to(output)
            if re.match(r"[a-z]+:|//", value):
                if tag != "a":
                    yield f"{where}: <{tag}> loads {value}"
                continue
            target, _, anchor = value.partition("#")
            to = Path(os.path.normpath(file.parent / unquote(target))) if target else file
            if not to.is_file():
                yield f"{where}: there is no {value}"
            elif anchor and to in pages and anchor not in pages[to].ids:
                yield f"{where}: {target or where.name} has no #{anchor}"


def main():
    output = Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "dist/site").resolve()
    if not shutil.which("cmark-gfm"):
        sys.exit("cmark-gfm is missing: scripts/install-test-deps.sh installs it")
    site = Site(output)
    site.build()
    problems = sorted(set(broken(output)))
    print("\n".join(problems) if problems else f"{len(site.pages)} pages: {output}/index.html")
    sys.exit(bool(problems))


if __name__ == "__main__":
    main()
