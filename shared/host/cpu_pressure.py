"""How busy the machine is: the share of the time in which a process waited for a core.

The kernel's pressure stall information has it (`Documentation/accounting/psi.rst`).
"""

import re
from collections import deque
from pathlib import Path

_CPU = Path("/proc/pressure/cpu")
_TOTAL = re.compile(rb"some .*total=(\d+)")
_EVERY_S = 0.1  # between two samples
_SAMPLES = 5


class CpuPressure:
    """Samples the kernel's total; the pressure is that of the last half second.

    Args:
        path: The kernel's file.
    """

    def __init__(self, path: Path = _CPU) -> None:
        self._path = path
        self._samples: deque[tuple[float, int]] = deque(maxlen=_SAMPLES + 1)
        self._pressure = 0.0

    def read(self, now: float) -> float:
        """Returns the pressure, from 0 to 1; 0 where the kernel does not report it."""
        if self._samples and now - self._samples[-1][0] < _EVERY_S:
            return self._pressure
        try:
            found = _TOTAL.match(self._path.read_bytes())
        except OSError:
            found = None
        self._samples.append((now, int(found[1]) if found else 0))
        began, before = self._samples[0]
        waited_s = (self._samples[-1][1] - before) / 1e6
        self._pressure = round(min(1.0, waited_s / (now - began)), 2) if now > began else 0.0
        return self._pressure
