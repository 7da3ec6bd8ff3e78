#!/usr/bin/env python3
"""Checks an image in OCI layout, and unpacks it: layout.py IMAGE INTO writes INTO/config.json and INTO/tree."""

import gzip
import hashlib
import io
import json
import sys
import tarfile
from pathlib import Path

FILES = {
    "usr/bin/weir",
    "usr/share/doc/weir/third-party-licences.txt",
    "etc/passwd",
    "etc/group",
    "etc/weir/weir.yaml",
    "etc/ssl/certs/ca-certificates.crt",
}
WRITTEN = {"run/weir", "var/lib/weir"}
BYTES_MAX = 20 << 20


def check(holds, message):
    if not holds:
        sys.exit(f"layout.py: {message}")


def main():
    image, into = Path(sys.argv[1]), Path(sys.argv[2])
    check(image.stat().st_size < BYTES_MAX, f"{image} has {image.stat().st_size} bytes")
    with tarfile.open(image) as tar:
        files = {member.name: tar.extractfile(member).read() for member in tar if member.isfile()}
    for name, content in files.items():
        if name.startswith("blobs/sha256/"):
            check(hashlib.sha256(content).hexdigest() == name.rpartition("/")[2], f"{name} has another digest")

    def blob(descriptor):
        content = files["blobs/" + descriptor["digest"].replace(":", "/")]
        check(len(content) == descriptor["size"], f"{descriptor} has another size")
        return content

    check(json.loads(files["oci-layout"]) == {"imageLayoutVersion": "1.0.0"}, "no OCI layout")
    [described] = json.loads(files["index.json"])["manifests"]
    manifest = json.loads(blob(described))
    config = json.loads(blob(manifest["config"]))
    check(len(manifest["layers"]) == 1, "more than one layer")
    layer = gzip.decompress(blob(manifest["layers"][0]))
    check(config["rootfs"]["diff_ids"] == ["sha256:" + hashlib.sha256(layer).hexdigest()], "diff_ids of another layer")
    user = config["config"]["User"].split(":")[0]
    check(user.isdecimal() and int(user) > 0, f"it runs as {user!r}, and Kubernetes wants a number that is not root's")
    (into / "config.json").write_text(json.dumps(config))
    with tarfile.open(fileobj=io.BytesIO(layer)) as tar:
        members = {member.name: member for member in tar}
        check({name for name, member in members.items() if member.isfile()} == FILES, f"other files: {sorted(members)}")
        for name, member in members.items():
            check(member.isfile() or member.isdir(), f"{name} is neither file nor directory")
            check(member.mode & 0o7022 == 0, f"{name} has mode {member.mode:o}")
            check(member.uid == (int(user) if name in WRITTEN else 0), f"{name} belongs to {member.uid}")
        check(WRITTEN <= set(members), "no directories to write in")
        tar.extractall(into / "tree", numeric_owner=True, filter="fully_trusted")


if __name__ == "__main__":
    main()
