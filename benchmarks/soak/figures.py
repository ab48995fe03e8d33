"""Turns requests, faults and samples of a soak into figures. Pure.

- *Availability*: the share of requests that were answered whole, of those whose clients stayed.
- *MTTR*: the mean time from a fault until every service and group was ready again, the time that a process
  was frozen included.
- *Incident*: failed requests of which each came within `_INCIDENT_S` of the one before. *MTBF*: the time of
  the whole run by the number of incidents.
- *Leaks*: the slope of a service's memory between its own starts, after it was warm.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from benchmarks.lib.measuring import percentiles, spread
from benchmarks.soak.faults import SoakFault
from benchmarks.soak.load import Ending
from benchmarks.soak.samples import Sample

_INCIDENT_S = 10.0
_WARM_S = 600.0  # of a process: caches and pools fill up to their bounds
_LEAST_SAMPLES = 20
_MIB = 2**20


def figures(
    seconds: float, endings: Sequence[Ending], faults: Sequence[SoakFault], samples: Sequence[Sample]
) -> dict[str, Any]:
    """Returns the figures of a run of so many seconds."""
    stayed = [one for one in endings if one.error != "left"]
    failed = [one for one in stayed if one.failed]
    repaired = [one.repaired_s for one in faults if one.repaired_s >= 0]
    incidents = len(incident_times(failed))
    return {
        "hours": round(seconds / 3600, 3),
        "requests": len(endings),
        "left_by_clients": len(endings) - len(stayed),
        "failed": len(failed),
        "availability": round(1 - len(failed) / len(stayed), 6) if stayed else None,
        "errors": dict(Counter(one.error for one in failed).most_common()),
        "errors_by_kind": dict(Counter(one.kind for one in failed).most_common()),
        "incidents": incidents,
        "mtbf_s": round(seconds / incidents, 1) if incidents else None,
        "faults": len(faults),
        "faults_by_part": dict(Counter(f"{one.kind} {one.part}" for one in faults).most_common()),
        "not_repaired": sum(one.repaired_s < 0 for one in faults),
        "mttr_s": round(sum(repaired) / len(repaired), 3) if repaired else None,
        "repair_s": spread(repaired),
        "answer_s": {
            kind: spread([one.seconds for one in stayed if one.kind == kind and not one.failed])
            for kind in sorted({one.kind for one in stayed})
        },
        "leaks": leaks(samples),
    }


def incident_times(failed: Sequence[Ending]) -> list[tuple[float, float]]:
    """Returns the first and the last failure of each incident, by their ends."""
    found: list[tuple[float, float]] = []
    for at_s in sorted(one.at_s + one.seconds for one in failed):
        if found and at_s - found[-1][1] <= _INCIDENT_S:
            found[-1] = found[-1][0], at_s
        else:
            found.append((at_s, at_s))
    return found


def leaks(samples: Sequence[Sample]) -> dict[str, dict[str, float | int | None]]:
    """Returns for each service how its memory, files and threads grew in the life that has most samples.

    `memory_mib_per_hour` is None where no life of the service is long enough to say.
    """
    found: dict[str, dict[str, float | int | None]] = {}
    for service in sorted({one.service for one in samples}):
        lives: dict[int, list[Sample]] = {}
        for one in samples:
            if one.service == service:
                lives.setdefault(one.pid, []).append(one)
        longest = max(lives.values(), key=len)
        warm = [one for one in longest if one.at_s >= longest[0].at_s + _WARM_S]
        first, last = longest[0], longest[-1]
        found[service] = {
            "starts": len(lives),
            "seconds": round(last.at_s - first.at_s),
            "memory_mib": round(last.memory_bytes / _MIB, 1),
            "memory_mib_per_hour": slope_mib_per_hour(warm),
            "files": last.files,
            "files_grown": last.files - first.files,
            "threads_grown": last.threads - first.threads,
        }
    return found


def slope_mib_per_hour(samples: Sequence[Sample]) -> float | None:
    """Returns the slope of the line through the memory of one life; None of too few samples."""
    if len(samples) < _LEAST_SAMPLES:
        return None
    hours = np.array([one.at_s / 3600 for one in samples])
    memory = np.array([one.memory_bytes / _MIB for one in samples])
    return round(float(np.polyfit(hours, memory, 1)[0]), 2)


def by_minute(seconds: float, endings: Sequence[Ending]) -> list[dict[str, float]]:
    """Returns requests, failures and times of answers of each minute in which a request was sent."""
    minutes: list[list[Ending]] = [[] for _ in range(int(seconds // 60) + 1)]
    for one in endings:
        if one.error != "left":
            minutes[min(int(one.at_s // 60), len(minutes) - 1)].append(one)
    rows = []
    for minute, ended in enumerate(minutes):
        times = sorted(one.seconds for one in ended if not one.failed)
        if ended:
            failed = sum(one.failed for one in ended)
            row = {"minute": minute, "requests": len(ended), "failed": failed}
            rows.append(row | percentiles(times, "", "s", scale=1.0))
    return rows
