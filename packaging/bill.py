#!/usr/bin/env python3
"""What the program is made of: bill.py INTO reads its features from INTO/weir and writes weir-VERSION.cdx.json (CycloneDX 1.5) and third-party-licences.txt.

Both come from what cargo resolved, with nothing to install, and give the same bytes for the same lock files. cargo-cyclonedx and
cargo-about would be two more programs to build, and read cargo alone: the page's libraries, from npm, are built in too."""

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
# Libraries of other languages lie some folders deep in the packages that bring them.
DEPTH_MAX = 3
# Not of cargo: it is linked in all the same.
STATIC_LIBRARY = """The GNU C Library is linked in, under the GNU Lesser General Public License 2.1 or later. Its source is Debian's package glibc of the
version below; a user who wants weir with another C library builds weir's own source, which is complete, with packaging/build.sh.
"""


def run(*command):
    return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout


def crates(features):
    """Packages in the program, with those that each depends on: what tests and builds need is left out."""
    chosen = [f"--features=weir/{feature}" for feature in features]
    metadata = json.loads(
        run("cargo", "metadata", "--locked", "--format-version=1", f"--filter-platform={TARGET}", *chosen)
    )
    packages = {package["id"]: package for package in metadata["packages"]}
    nodes = {node["id"]: node for node in metadata["resolve"]["nodes"]}
    start = next(package["id"] for package in metadata["packages"] if package["name"] == "weir")
    found, waiting = {}, [start]
    while waiting:
        this = waiting.pop()
        if this in found:
            continue
        needed = [
            dependency["pkg"]
            for dependency in nodes[this]["deps"]
            if any(kind["kind"] is None for kind in dependency["dep_kinds"])
        ]
        found[this] = (packages[this], needed)
        waiting += needed
    return start, found


def checksums():
    lock = tomllib.loads((ROOT / "Cargo.lock").read_text())
    return {(one["name"], one["version"]): one.get("checksum") for one in lock["package"]}


def page_libraries():
    """Of the page, which is built in too."""
    lock = json.loads((ROOT / "web/package-lock.json").read_text())
    for path, package in sorted(lock["packages"].items()):
        if path and not package.get("dev") and not package.get("optional"):
            yield path.rpartition("node_modules/")[2], package, ROOT / "web" / path


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


def bill(start, found, date):
    sums = checksums()
    reference = {key: f"{package['name']}@{package['version']}" for key, (package, _) in found.items()}
    purl = {key: f"pkg:cargo/{text}" for key, text in reference.items()}
    components, dependencies = [], []
    for key, (package, needed) in sorted(found.items(), key=lambda item: reference[item[0]]):
        dependencies.append({"ref": reference[key], "dependsOn": sorted({reference[other] for other in needed})})
        if key != start:
            checksum = sums.get((package["name"], package["version"]))
            components.append(component(package, reference[key], purl[key], package["license"], checksum))
    for name, package, _ in page_libraries():
        named = {"name": name, "version": package["version"]}
        text = f"pkg:npm/{name.replace('@', '%40')}@{package['version']}"
        components.append(component(named, text, text, package.get("license"), None))
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
    """Licences in a package, by their place in it."""
    found = {}
    for path in sorted(folder.rglob("*")):
        parts = path.relative_to(folder).parts
        if len(parts) <= DEPTH_MAX and path.is_file() and LICENCE_FILE.match(path.name) and path.suffix in ("", ".md", ".txt"):
            found["/".join(parts)] = path.read_text(errors="replace").strip()
    return found


def licences(found):
    """Each text once, with those that are under it."""
    users = {}
    folders = [
        (f"{package['name']} {package['version']}", package["license"], Path(package["manifest_path"]).parent)
        for package, _ in found.values()
        if package["source"]
    ]
    folders += [(f"{name} {package['version']}", package.get("license"), folder) for name, package, folder in page_libraries()]
    for name, licence, folder in folders:
        here = texts(folder)
        if not here and not licence:
            sys.exit(f"bill.py: {name} says nothing of its licence")
        for place, text in here.items() or {"": f"{licence}. The package has no file with its text."}.items():
            users.setdefault(text, set()).add(f"{name} ({licence}){': ' if place else ''}{place}")
    parts = [STATIC_LIBRARY + run("ldd", "--version").splitlines()[0]]
    for text, names in sorted(users.items(), key=lambda item: sorted(item[1])):
        parts.append("\n".join(sorted(names)) + "\n\n" + text)
    rule = "\n\n" + "=" * 100 + "\n\n"
    return "What is built into weir, and under which licences." + rule + rule.join(parts) + "\n"


def main():
    into = Path(sys.argv[1])
    date = int(os.environ.get("SOURCE_DATE_EPOCH") or run("git", "log", "-1", "--format=%ct"))
    start, found = crates(json.loads(run(into / "weir", "--version", "--json"))["features"])
    version = found[start][0]["version"]
    text = json.dumps(bill(start, found, date), indent=1, sort_keys=True) + "\n"
    (into / f"weir-{version}.cdx.json").write_text(text)
    (into / "third-party-licences.txt").write_text(licences(found))


if __name__ == "__main__":
    main()
