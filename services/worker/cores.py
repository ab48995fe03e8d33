"""How many cores this process may use."""

import os


def usable_cores() -> int:
    """Those that the system lets it run on; where it does not tell, all there are."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
