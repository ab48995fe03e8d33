"""Names the boot of this machine: processes with the same name have the same monotonic clock."""

import hashlib
import os
import socket
from pathlib import Path

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_TIME_NAMESPACE = Path("/proc/self/ns/time")


def boot_id() -> str:
    """Returns a name of 16 digits; systems other than Linux are named by their host name."""
    try:
        boot = _BOOT_ID.read_text(encoding="ascii").strip()
    except OSError:
        boot = socket.gethostname()
    try:
        namespace = os.readlink(_TIME_NAMESPACE)  # clocks of other containers may be shifted
    except OSError:
        namespace = ""
    return hashlib.blake2b(f"{boot} {namespace}".encode(), digest_size=8).hexdigest()
