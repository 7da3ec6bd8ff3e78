#!/usr/bin/env python3
"""The components of a program: bill.py BINARY INTO writes NAME-VERSION.cdx.json (CycloneDX 1.5) and NAME-third-party-licences.txt, where
NAME is that of the binary's file. The features are those that an agent prints.

Both use cargo's resolution, need no installed tool, and give the same bytes for the same lock files. docs/decisions/README.md compares
the components with those of cargo-cyclonedx."""

import json
import os
import re
import subprocess
import sys
import tomllib
import uuid
from datetime import datetime, timezone
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TARGET = "x86_64-unknown-linux-gnu"
LICENCE_FILE = re.compile(r"^(licen[cs]e|copying|notice|copyright|unlicense)", re.IGNORECASE)
# Libraries of other languages are some folders deep in their packages.
DEPTH_MAX = 3
# Not from cargo: compilers link these in. (name, command that prints the version, licence)
OF_COMPILERS = [
    ("rust-std", ["rustc", "--version"], "MIT OR Apache-2.0"),
    ("glibc", ["ldd", "--version"], "LGPL-2.1-or-later"),
    ("libgcc", ["gcc", "-dumpfullversion"], "GPL-3.0-or-later WITH GCC-exception-3.1"),
]
ABOUT_COMPILERS = """Compilers link these in:

{lines}

What rust-std is made of stands in share/doc/rust/COPYRIGHT-library.html of the toolchain. The source of glibc is Debian's package of that
version; a user who wants another C library builds weir's own source, which is complete, with packaging/build.sh.
"""
# For packages without a licence file.
TEXTS = {"Apache-2.0": ROOT / "LICENSE"}


def run(*command):
    return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout


def crates(name, features):
    """Packages in the program, each with its dependencies, without those of tests and builds."""
    chosen = [f"--features={name}/{feature}" for feature in features]
    metadata = json.loads(
        run("cargo", "metadata", "--locked", "--format-version=1", f"--filter-platform={TARGET}", *chosen)
    )
    # Cargo's metadata is of all members together, with the features of each.
    of_program = run("cargo", "tree", "--locked", f"--package={name}", f"--target={TARGET}", "--edges=normal,build", "--prefix=none", "--format={p}", *chosen)
    in_program = {tuple(line.split()[:2]) for line in of_program.splitlines() if line}
    packages = {package["id"]: package for package in metadata["packages"]}
    nodes = {node["id"]: node for node in metadata["resolve"]["nodes"]}
    start = next(package["id"] for package in metadata["packages"] if package["name"] == name)

    # Such a crate consists of the source of a C library and the program that compiles it: needed for the build, and linked.
    def is_source(package):
        return package["name"].endswith("-src")

    def is_in_program(dependency):
        package = packages[dependency["pkg"]]
        kinds = {kind["kind"] for kind in dependency["dep_kinds"]}
        return (None in kinds or is_source(package)) and (package["name"], f"v{package['version']}") in in_program

    found, waiting = {}, [start]
    while waiting:
        this = waiting.pop()
        if this in found:
            continue
        dependencies = [] if is_source(packages[this]) else nodes[this]["deps"]
        needed = [dependency["pkg"] for dependency in dependencies if is_in_program(dependency)]
        found[this] = (packages[this], needed)
        waiting += needed
    return start, found


def checksums():
    lock = tomllib.loads((ROOT / "Cargo.lock").read_text())
    return {(one["name"], one["version"]): one.get("checksum") for one in lock["package"]}


def page_libraries():
    """Components of the page, which the program contains."""
    lock = json.loads((ROOT / "web/package-lock.json").read_text())
    for path, package in sorted(lock["packages"].items()):
        if path and not package.get("dev") and not package.get("optional"):
            yield path.rpartition("node_modules/")[2], package, ROOT / "web" / path


def of_compilers():
    for name, command, licence in OF_COMPILERS:
        yield name, re.search(r"\d+(\.\d+)+[-+~.\w]*", run(*command))[0], licence


def component(package, reference, purl, licence, checksum):
    component = {
        "type": "library",
        "bom-ref": reference,
        "name": package["name"],
        "version": package["version"],
        "purl": purl,
    }
    if licence:
        component["licenses"] = [{"expression": licence.replace("/", " OR ")}]
    if checksum:
        component["hashes"] = [{"alg": "SHA-256", "content": checksum}]
    return component


def bill(start, found, pages, date):
    sums = checksums()
    reference = {key: f"{package['name']}@{package['version']}" for key, (package, _) in found.items()}
    purl = {key: f"pkg:cargo/{text}" for key, text in reference.items()}
    components, dependencies = [], []
    for key, (package, needed) in sorted(found.items(), key=lambda item: reference[item[0]]):
        dependencies.append({"ref": reference[key], "dependsOn": sorted({reference[other] for other in needed})})
        if key != start:
            checksum = sums.get((package["name"], package["version"]))
            components.append(component(package, reference[key], purl[key], package["license"], checksum))
    for name, package, _ in pages:
        named = {"name": name, "version": package["version"]}
        text = f"pkg:npm/{name.replace('@', '%40')}@{package['version']}"
        components.append(component(named, text, text, package.get("license"), None))
    for name, version, licence in of_compilers():
        text = f"pkg:generic/{name}@{version}"
        components.append(component({"name": name, "version": version}, text, text, licence, None))
    main = component(found[start][0], reference[start], purl[start], found[start][0]["license"], None)
    content = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {
            "timestamp": datetime.fromtimestamp(date, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "component": {**main, "type": "application"},
        },
        "components": components,
        "dependencies": dependencies,
    }
    content["serialNumber"] = f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, json.dumps(content, sort_keys=True))}"
    return content


def texts(folder):
    """Licences in a package, by path."""
    found = {}
    for path in sorted(folder.rglob("*")):
        parts = path.relative_to(folder).parts
        if len(parts) <= DEPTH_MAX and path.is_file() and LICENCE_FILE.match(path.name) and path.suffix in ("", ".md", ".txt"):
            found["/".join(parts)] = path.read_text(errors="replace").strip()
    return found


def licences(name, found, pages):
    """Each text once, with the components under it."""
    users = {}
    folders = [
        (f"{package['name']} {package['version']}", package["license"], Path(package["manifest_path"]).parent)
        for package, _ in found.values()
        if package["source"]
    ]
    folders += [(f"{name} {package['version']}", package.get("license"), folder) for name, package, folder in pages]
    for library, licence, folder in folders:
        if not folder.is_dir():
            sys.exit(f"bill.py: {library} is not in {folder}, where its licence is looked for; run: make page")
        here = texts(folder)
        if not here and licence not in TEXTS:
            sys.exit(f"bill.py: {library} ({licence}) has no text of its licence")
        for place, text in here.items() or {"": TEXTS[licence].read_text().strip()}.items():
            users.setdefault(text, set()).add(f"{library} ({licence}){': ' if place else ''}{place}")
    lines = "\n".join(" ".join(one[:2]) + f" ({one[2]})" for one in of_compilers())
    parts = [ABOUT_COMPILERS.format(lines=lines)]
    for text, names in sorted(users.items(), key=lambda item: sorted(item[1])):
        parts.append("\n".join(sorted(names)) + "\n\n" + text)
    rule = "\n\n" + "=" * 100 + "\n\n"
    return f"What is built into {name}, and under which licences." + rule + rule.join(parts) + "\n"


def main():
    binary, into = Path(sys.argv[1]).absolute(), Path(sys.argv[2])
    is_agent = binary.name != "weir-bench"
    about = json.loads(run(binary, "--version", "--json")) if is_agent else {"features": [], "has_page": False}
    date = int(os.environ.get("SOURCE_DATE_EPOCH") or run("git", "log", "-1", "--format=%ct"))
    start, found = crates("weir" if is_agent else binary.name, about["features"])
    pages = list(page_libraries()) if about["has_page"] else []
    text = json.dumps(bill(start, found, pages, date), indent=1, sort_keys=True) + "\n"
    (into / f"{binary.name}-{found[start][0]['version']}.cdx.json").write_text(text)
    (into / f"{binary.name}-third-party-licences.txt").write_text(licences(binary.name, found, pages))


if __name__ == "__main__":
    main()
