"""Remembers which commit and checksum a model of the Hub had when it was pulled first, on this machine.

The catalogue has no checksums of these models. So the first pull takes what the Hub names, and each later
one, also after the model was removed, has to bring the same file.
"""

import json
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from cli.models.store import models_dir
from cli.stack.host.private import replace_private

_FILE = "pins.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pin:
    """A file of the Hub at one commit."""

    commit: str
    sha256: str


def pins_file() -> Path:
    """Return the file with all pins; to remove a model's line from it takes back its pin."""
    return models_dir() / _FILE


def pin_of(hub: str) -> Pin | None:
    """Return the pin of a name on the Hub; None before its first pull."""
    found = _read().get(hub)
    return Pin(commit=found["commit"], sha256=found["sha256"]) if found else None


def set_pin(hub: str, pin: Pin) -> None:
    """Write the pin of a name on the Hub. The lock of the model is held."""
    replace_private(pins_file(), json.dumps(_read() | {hub: asdict(pin)}, indent=1) + "\n")


def _read() -> dict[str, dict[str, str]]:
    with suppress(FileNotFoundError):
        try:
            found = json.loads(pins_file().read_text())
            if all(one.keys() == {"commit", "sha256"} for one in found.values()):
                return dict(found)
        except (ValueError, AttributeError):
            pass
        from cli.console import fail  # noqa: PLC0415 (keeps `ryz --help` quick)

        fail(f"{pins_file()} is not what this program wrote: mend it, or remove it to pin models anew.", 2)
    return {}
