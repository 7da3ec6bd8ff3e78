#!/usr/bin/env python3
"""Checks the dependencies against deny.toml: licences, versions, sources, and which crates may depend on which.

Uses only cargo, for the platform of this machine. The check for known vulnerabilities needs a database
from the network: `cargo deny check advisories`.
"""

import json
import re
import subprocess
import sys
import tomllib
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def output(*command: str) -> str:
    return subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout


def metadata() -> dict:
    host = re.search(r"^host: (.*)$", output("rustc", "-vV"), re.MULTILINE)[1]
    found = output("cargo", "metadata", "--format-version", "1", "--locked", "--all-features", "--filter-platform", host)
    return json.loads(found)


def licence_allowed(expression: str, allowed: list[str]) -> bool:
    """Whether an SPDX expression is allowed. Older crates write a slash for OR."""
    tokens = re.findall(r"\(|\)|[^\s()]+", expression.replace("/", " OR "))

    def term() -> bool:
        token = tokens.pop(0)
        if token == "(":
            inside = either()
            tokens.pop(0)
            return inside
        if tokens[:1] == ["WITH"]:
            token = " ".join([token, tokens.pop(0), tokens.pop(0)])
        return token in allowed

    def both() -> bool:
        result = term()
        while tokens[:1] == ["AND"]:
            tokens.pop(0)
            result = term() and result
        return result

    def either() -> bool:
        result = both()
        while tokens[:1] == ["OR"]:
            tokens.pop(0)
            result = both() or result
        return result

    return either()


def check_licences(packages: list[dict], rules: dict) -> list[str]:
    errors = []
    for package in packages:
        licence = package["license"]
        if licence is None or not licence_allowed(licence, rules["allow"]):
            errors.append(f"{package['name']} {package['version']}: licence {licence!r} is not allowed")
    return errors


def check_versions(packages: list[dict], skip: list[dict]) -> list[str]:
    versions = defaultdict(set)
    for package in packages:
        versions[package["name"]].add(package["version"])
    known = {entry["crate"] for entry in skip}
    present = {f"{name}@{version}" for name, list in versions.items() for version in list}
    errors = [f"deny.toml: skip: {crate} is not there (any more)" for crate in sorted(known - present)]
    for name, list in sorted(versions.items()):
        unknown = sorted(version for version in list if f"{name}@{version}" not in known)
        if len(list) > 1 and len(unknown) > 1:
            errors.append(f"{name}: versions {' and '.join(unknown)}; one is enough, or deny.toml says why not")
        if len(list) == 1 and len(unknown) == 0:
            errors.append(f"deny.toml: skip: {name} has one version alone")
    return errors


def check_dependents(nodes: list[dict], names: dict, deny: list[dict]) -> list[str]:
    """Crates that only some crates may depend on, and crates that none may."""
    errors = []
    dependents = defaultdict(set)
    for node in nodes:
        for dependency in node["dependencies"]:
            dependents[names[dependency]].add(names[node["id"]])
    for rule in deny:
        name, allowed = rule["crate"], set(rule.get("wrappers", []))
        if not allowed and name in names.values():
            errors.append(f"{name} is not allowed: {rule['reason']}")
        for dependent in sorted(dependents[name] - allowed - {name}):
            errors.append(f"{dependent} depends on {name}, which it may not: {rule['reason']}")
    return errors


def check_sources(packages: list[dict]) -> list[str]:
    errors = []
    for package in packages:
        source = package["source"]
        if source is not None and not source.startswith("registry+"):
            errors.append(f"{package['name']}: comes from {source}; allowed is the registry alone")
        for dependency in package["dependencies"]:
            if source is None and dependency["req"] == "*" and "path" not in dependency:
                errors.append(f"{package['name']}: any version of {dependency['name']}; say which")
    return errors


def main() -> int:
    rules = tomllib.loads((ROOT / "deny.toml").read_text())
    found = metadata()
    packages, nodes = found["packages"], found["resolve"]["nodes"]
    names = {package["id"]: package["name"] for package in packages}
    errors = check_licences(packages, rules["licenses"])
    errors += check_versions(packages, rules["bans"]["skip"])
    errors += check_dependents(nodes, names, rules["bans"]["deny"])
    errors += check_sources(packages)
    for error in errors:
        print(f"check-dependencies: {error}", file=sys.stderr)
    if not errors:
        print(f"{len(packages)} crates: licences, versions, sources and dependents are as deny.toml says")
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
