"""Option values that a command line gives as one text, such as `--batches 1,4,8`.

A plan declares them as notes of its fields' types: `Annotated[Sequence[int], Option(...), Numbers(512)]`.
"""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Numbers:
    """Numbers from `least` to `most` with commas between them; repeated ones count once."""

    most: int
    least: int = 1

    def parse(self, option: str, text: str) -> list[int]:
        """Read the option's text.

        Raises:
            ValueError: A part is no such number.
        """
        try:
            found = [int(part) for part in text.split(",")]
        except ValueError:
            found = []
        if not found or not all(self.least <= number <= self.most for number in found):
            raise ValueError(
                f"{option} takes numbers from {self.least} to {self.most} with commas between them, "
                f"got {text!r}"
            )
        return list(dict.fromkeys(found))


@dataclass(frozen=True, slots=True)
class Word:
    """One of the known words."""

    known: Sequence[str]

    def parse(self, option: str, text: str) -> str:
        """Read the option's text.

        Raises:
            ValueError: The word is not known.
        """
        if text not in self.known:
            raise ValueError(f"{option} is one of {', '.join(self.known)}, got {text!r}")
        return text


@dataclass(frozen=True, slots=True)
class Words:
    """Known words with commas between them."""

    known: Sequence[str]

    def parse(self, option: str, text: str) -> list[str]:
        """Read the option's text. See `Word.parse`."""
        return [Word(self.known).parse(option, part) for part in text.split(",")]
