#!/usr/bin/env python3
"""Makes the container image, as a tar in OCI layout: image.py BINARY INTO LICENCES. No daemon, no network, no base image: one layer with
the binary, certificate authorities of this machine, the licences of what is built in, and directories for what it writes. Two runs
give the same bytes. The image has the name of the binary's file."""

import gzip
import hashlib
import io
import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
USER = 65532
AUTHORITIES = "/etc/ssl/certs/ca-certificates.crt"

CONFIGURATION = """\
# The image's default configuration. Mount your own file over it, or set WEIR_ variables.
udp: ['*:8125']
admin: '*:8127'
"""

FILES = {
    "etc/passwd": f"root:x:0:0:root:/:/none\nweir:x:{USER}:{USER}:weir:/var/lib/weir:/none\n",
    "etc/group": f"root:x:0:\nweir:x:{USER}:\n",
    "etc/weir/weir.yaml": CONFIGURATION,
}

# Directories that weir writes to, if they are not mounted.
WRITTEN = ["run/weir", "var/lib/weir"]


def entry(name, mode, date, user=0, kind=tarfile.REGTYPE, size=0):
    info = tarfile.TarInfo(name)
    info.mode, info.mtime, info.type, info.size = mode, date, kind, size
    info.uid = info.gid = user
    return info


def layer(binary, licences, date):
    """The only layer: every file, and every directory before its contents."""
    files = {name: (text.encode(), 0o644) for name, text in FILES.items()}
    files["usr/bin/weir"] = (Path(binary).read_bytes(), 0o755)
    files["usr/share/doc/weir/third-party-licences.txt"] = (Path(licences).read_bytes(), 0o644)
    if os.path.exists(AUTHORITIES):
        files[AUTHORITIES.lstrip("/")] = (Path(AUTHORITIES).read_bytes(), 0o644)
    else:
        print(f"image.py: no {AUTHORITIES} (Debian's package ca-certificates): the image trusts nobody", file=sys.stderr)
    parents = {str(parent) for name in [*files, *WRITTEN] for parent in Path(name).parents} - {"."}
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for name in sorted(parents | set(WRITTEN)):
            user = USER if name in WRITTEN else 0
            tar.addfile(entry(name, 0o755, date, user, tarfile.DIRTYPE))
        for name, (content, mode) in sorted(files.items()):
            tar.addfile(entry(name, mode, date, size=len(content)), io.BytesIO(content))
    return packed.getvalue()


def about(binary):
    return json.loads(subprocess.run([binary, "--version", "--json"], check=True, capture_output=True).stdout)


def configuration(name, program, diff, created):
    return {
        "created": created,
        "architecture": "amd64",
        "os": "linux",
        "config": {
            "User": f"{USER}:{USER}",
            "ExposedPorts": {"8125/udp": {}, "8127/tcp": {}},
            "Env": ["PATH=/usr/bin", "WEIR_CONFIG=/etc/weir/weir.yaml"],
            "Entrypoint": ["/usr/bin/weir"],
            "Cmd": ["run"],
            "StopSignal": "SIGTERM",
            # For Docker; others ignore it.
            "Healthcheck": {
                "Test": ["CMD", "/usr/bin/weir", "status", "--quiet"],
                "Interval": 10_000_000_000,
                "Timeout": 6_000_000_000,
                "StartPeriod": 10_000_000_000,
                "Retries": 3,
            },
            "Labels": {
                "org.opencontainers.image.title": name,
                "org.opencontainers.image.description": "Agent for DogStatsD metrics",
                "org.opencontainers.image.licenses": "Apache-2.0",
                "org.opencontainers.image.source": "https://github.com/weir-dev/weir",
                "org.opencontainers.image.version": program["version"],
                "org.opencontainers.image.revision": program["commit"] or "",
            },
        },
        "rootfs": {"type": "layers", "diff_ids": [diff]},
        "history": [{"created": created, "created_by": "packaging/image.py"}],
    }


def digest(content):
    return "sha256:" + hashlib.sha256(content).hexdigest()


class Layout:
    """Files of an OCI layout, by name."""

    def __init__(self):
        self.files = {"oci-layout": b'{"imageLayoutVersion":"1.0.0"}'}

    def blob(self, media_type, content):
        """Adds it and returns its descriptor."""
        name = digest(content)
        self.files["blobs/" + name.replace(":", "/")] = content
        return {"mediaType": media_type, "digest": name, "size": len(content)}

    def json(self, media_type, value):
        return self.blob(media_type, json.dumps(value, sort_keys=True, separators=(",", ":")).encode())

    def write(self, path, date):
        with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as tar:
            for name in ["blobs", "blobs/sha256"]:
                tar.addfile(entry(name, 0o755, date, kind=tarfile.DIRTYPE))
            for name, content in sorted(self.files.items()):
                tar.addfile(entry(name, 0o644, date, size=len(content)), io.BytesIO(content))


def main():
    binary, into, licences = os.path.abspath(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
    name = os.path.basename(binary)
    date = os.environ.get("SOURCE_DATE_EPOCH") or subprocess.run(
        ["git", "-C", HERE, "log", "-1", "--format=%ct"], check=True, capture_output=True, text=True
    ).stdout
    date = int(date)
    created = subprocess.run(
        ["date", "-u", "-d", f"@{date}", "+%Y-%m-%dT%H:%M:%SZ"], check=True, capture_output=True, text=True
    ).stdout.strip()
    program = about(binary)
    plain = layer(binary, licences, date)
    layout = Layout()
    config = configuration(name, program, digest(plain), created)
    manifest = {
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": layout.json("application/vnd.oci.image.config.v1+json", config),
        "layers": [layout.blob("application/vnd.oci.image.layer.v1.tar+gzip", gzip.compress(plain, 9, mtime=0))],
    }
    described = layout.json("application/vnd.oci.image.manifest.v1+json", manifest)
    described["platform"] = {"architecture": "amd64", "os": "linux"}
    # The name given by `podman load`, and by `docker load` with containerd.
    tag = f"localhost/{name}:{program['version']}"
    described["annotations"] = {"org.opencontainers.image.ref.name": tag, "io.containerd.image.name": tag}
    index = {"schemaVersion": 2, "mediaType": "application/vnd.oci.image.index.v1+json", "manifests": [described]}
    layout.files["index.json"] = json.dumps(index, sort_keys=True).encode()
    path = into / f"{name}-{program['version']}-image.tar"
    layout.write(path, date)
    print(path)


if __name__ == "__main__":
    main()
