"""Which files the groups of a stack serve, from the environment that its processes show."""

from collections import Counter
from pathlib import Path

from cli.stack.state import StackState


def serving_groups(state: StackState | None) -> Counter[Path]:
    """Return the number of groups that serve each model, by its file or directory."""
    import psutil  # noqa: PLC0415 (slow to import)

    found = Counter[Path]()
    for service in state.services if state is not None else ():
        if not service.model or not service.pid:
            continue
        try:
            model = psutil.Process(service.pid).environ().get("RYZ_MODEL", "")
        except (psutil.Error, OSError):
            continue  # it has ended
        if model:
            found[Path(model).resolve()] += 1
    return found
