"""The loss curve as a file: a line of JSON for each step and each evaluation."""

import json
import os
from pathlib import Path
from typing import Any

NAME = "loss.jsonl"


class LossLog:
    """The file; a resumed training goes on behind the step of its checkpoint.

    Args:
        step: The last step whose lines are kept.
    """

    def __init__(self, directory: Path, step: int) -> None:
        self._path = directory / NAME
        kept = [line for line in read_log(directory) if line["step"] <= step] if step else []
        draft = directory / f".{NAME}.part"
        draft.write_text("".join(json.dumps(line) + "\n" for line in kept))
        draft.replace(self._path)

    def add(self, **line: Any) -> None:
        """Append a line."""
        with self._path.open("a") as file:
            file.write(json.dumps(line) + "\n")

    def sync(self) -> None:
        """Write the lines so far to the disk."""
        with self._path.open("a") as file:
            os.fsync(file.fileno())


def read_log(directory: Path) -> list[dict[str, Any]]:
    """Read the lines; a last one that was cut is left out."""
    path = directory / NAME
    if not path.exists():
        return []
    lines = []
    for text in path.read_text().splitlines():
        try:
            lines.append(json.loads(text))
        except ValueError:
            break
    return lines
