#!/usr/bin/env python3
"""Runs the program in an empty root beside a name server of its own, in a network namespace: DNS works with nothing but
/etc/resolv.conf."""

import os
import socket
import struct
import subprocess
import sys
import threading


def serve(server):
    """Answers every question for an IPv4 address with 127.0.0.9, and others with nothing."""
    while True:
        question, client = server.recvfrom(512)
        end = question.index(b"\0", 12) + 5
        is_a = struct.unpack(">H", question[end - 4 : end - 2])[0] == 1
        head = question[:2] + struct.pack(">HHHHH", 0x8180, 1, int(is_a), 0, 0)
        record = b"\xc0\x0c" + struct.pack(">HHIH", 1, 1, 60, 4) + bytes([127, 0, 0, 9])
        server.sendto(head + question[12:end] + (record if is_a else b""), client)


def main():
    root = sys.argv[1]
    if len(sys.argv) == 2:
        again = ["unshare", "--user", "--map-root-user", "--net", sys.executable, __file__, root, "inside"]
        sys.exit(subprocess.run(again).returncode)
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    server.bind(("127.0.0.1", 53))
    threading.Thread(target=serve, args=[server], daemon=True).start()
    with open(os.path.join(root, "etc/resolv.conf"), "w") as file:
        file.write("nameserver 127.0.0.1\noptions timeout:2 attempts:2\n")
    config = "udp: ['127.0.0.1:0']\noutputs:\n  graphite:\n    address: tcp://carbon.example:2003\n"
    with open(os.path.join(root, "weir.yaml"), "w") as file:
        file.write(config)
    command = ["unshare", f"--root={root}", "/weir", "doctor", "--config", "/weir.yaml", "--json"]
    found = subprocess.run(command, capture_output=True, text=True, env={"WEIR_ADMIN": "off"})
    if '"127.0.0.9"' not in found.stdout:
        sys.exit(f"resolver.py: {found.stdout}{found.stderr}")


if __name__ == "__main__":
    main()
