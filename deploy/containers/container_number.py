"""Prints the number of this container among those of its service: 2 for `ryzanstein-worker-2`.

A container does not know its name, but Docker's DNS has it for the container's address. The system's own
look-up is no help: /etc/hosts has the address with the host name, which is the container's id.
"""

import re
import socket
import struct
import sys
import time
from pathlib import Path

POINTER = 12  # the type of a record that leads from an address to a name
PATIENCE_S, TIMEOUT_S = 10.0, 2.0
RESOLVER = re.compile(r"^nameserver\s+([\d.]+)", re.M)
NUMBER = re.compile(r"[-_](\d+)$")


def question(address: str) -> bytes:
    """Return the question for the names of an IPv4 address."""
    labels = [*reversed(address.split(".")), "in-addr", "arpa"]
    name = b"".join(bytes([len(label)]) + label.encode() for label in labels) + b"\0"
    return name + struct.pack(">HH", POINTER, 1)


def first_labels(answer: bytes, asked: bytes) -> list[str]:
    """Return the first label of each name in an answer: the container's name, without that of the network."""
    (count,) = struct.unpack_from(">H", answer, 6)
    at, found = 12 + len(asked), []
    for _ in range(count):
        while answer[at] and answer[at] < 0xC0:  # labels, up to their end or to a reference
            at += 1 + answer[at]
        at += 2 if answer[at] else 1
        kind, _, _, length = struct.unpack_from(">HHIH", answer, at)
        data = answer[at + 10 : at + 10 + length]
        at += 10 + length
        if kind == POINTER and data[0] < 0xC0:
            found.append(data[1 : 1 + data[0]].decode(errors="replace"))
    return found


def names_of(address: str, server: str) -> list[str]:
    """Ask a DNS server."""
    asked = question(address)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as link:
        link.settimeout(TIMEOUT_S)
        link.connect((server, 53))
        link.send(struct.pack(">HHHHHH", 1, 0x0100, 1, 0, 0, 0) + asked)
        return first_labels(link.recv(4096), asked)


def container_number() -> str:
    """Return the number; empty if no name of this container ends with one."""
    addresses = socket.gethostbyname_ex(socket.gethostname())[2]
    for server in RESOLVER.findall(Path("/etc/resolv.conf").read_text()):
        for address in addresses:
            for name in names_of(address, server):
                if match := NUMBER.search(name):
                    return match[1]
    return ""


def main() -> int:
    """Prints it, or says what to do without."""
    deadline, why = time.monotonic() + PATIENCE_S, "its name does not end with one"
    while time.monotonic() < deadline:
        try:
            if found := container_number():
                print(found)
                return 0
        except (OSError, IndexError, struct.error) as error:
            why = str(error)
        time.sleep(0.2)
    print(
        f"start: this container has no number ({why}): set RYZ_GROUP to the name of its group",
        file=sys.stderr,
    )
    return 2


if __name__ == "__main__":
    sys.exit(main())
