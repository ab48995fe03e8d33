"""Finds processes of this machine that serve a model, so that it is not removed under them."""

from pathlib import Path


def users_of(target: Path) -> list[int]:
    """Return the ids of processes whose `RYZ_MODEL` is that file or directory.

    Processes of other users, and those of containers, are not seen.
    """
    import psutil  # noqa: PLC0415 (slow to import)

    found = list[int]()
    for process in psutil.process_iter():
        try:
            model = process.environ().get("RYZ_MODEL", "")
        except (psutil.Error, OSError):
            continue
        if model and Path(model) == target.resolve():
            found.append(process.pid)
    return sorted(found)
