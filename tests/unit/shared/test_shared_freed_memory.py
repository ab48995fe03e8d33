"""What was freed goes back to the system."""

import subprocess
import sys

import pytest

PROGRAM = """
from pathlib import Path
from shared.host.freed_memory import return_freed_memory

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

parts = [bytearray(50_000) for _ in range(2_000)]
kept = parts[::100]  # the C library cannot shrink its heap below the last of these
full = resident()
del parts
freed = resident()
return_freed_memory()
print(full, freed, resident())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="other C libraries have no such call")
def test_freed_memory_between_kept_objects_is_given_back() -> None:
    found = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    full, freed, after = map(int, found.stdout.split())
    assert full - freed < 20 * 2**20, "the library has kept it"
    assert full - after > 70 * 2**20
