"""Reads the options that benches share; a wrong one ends the command with exit code 2 and one sentence."""

from collections.abc import Iterable
from typing import Any

from cli.console import fail


def numbers(option: str, text: str, most: int) -> list[int]:
    """Numbers from 1 to `most` with commas between them, each once."""
    try:
        found = [int(part) for part in text.split(",")]
    except ValueError:
        found = []
    if not found or not all(1 <= number <= most for number in found):
        fail(f"{option} takes numbers from 1 to {most} with commas between them, got {text!r}.", exit_code=2)
    return list(dict.fromkeys(found))


def choice(option: str, text: str, known: Iterable[str]) -> Any:
    """One of the known words."""
    words = list(known)
    if text not in words:
        fail(f"{option} is one of {', '.join(words)}, got {text!r}.", exit_code=2)
    return text
