"""Which pages of its context a token reads in layers without a sliding window: the setting `attention`.

A page is a KV block of 16 tokens. The choice follows from the number of the token's own page alone, so a
token reads the same pages in a prompt and in decoding, in any batch, and on any number of ranks.
"""

import re
from dataclasses import dataclass
from typing import Any

from services.worker.rank_protocol.plan import BLOCK_SIZE

FULL = "full"
_EXAMPLE = "window=4096,sinks=64,stride=16"
_LARGEST = 2**30
_PART = re.compile(r"(window|sinks|stride)=(\d{1,10})")


@dataclass(frozen=True, slots=True)
class PagePolicy:
    """The pages that a token reads beside its own.

    Attributes:
        recent: How many pages before its own, at least 1.
        sinks: How many of the first pages (attention sinks: Xiao et al., 2024).
        stride: Of the pages in between those whose number is a multiple of it; 0: none.
    """

    recent: int
    sinks: int = 0
    stride: int = 0

    @property
    def format(self) -> str:
        """Its part of the KV format's name, such as `w4096:s64:p16`."""
        return f"w{self.recent * BLOCK_SIZE}:s{self.sinks * BLOCK_SIZE}:p{self.stride}"

    def __str__(self) -> str:
        parts = [f"window={self.recent * BLOCK_SIZE}"]
        parts += [f"sinks={self.sinks * BLOCK_SIZE}"] * (self.sinks > 0)
        parts += [f"stride={self.stride}"] * (self.stride > 0)
        return ",".join(parts)

    def reads(self, own: Any, pages: Any) -> Any:
        """Whether a token in page `own` reads those pages, none of which is behind its own.

        Args:
            own: A number, or an array or tensor of numbers.
            pages: The same.

        Returns:
            Booleans in the broadcast shape.
        """
        read = (pages >= own - self.recent) | (pages < self.sinks)
        return read | (pages % self.stride == 0) if self.stride else read


def page_policy(text: str) -> PagePolicy | None:
    """Parses the setting, with tokens rounded up to whole pages; None: every page is read.

    Raises:
        ValueError: It is neither `full` nor a policy.
    """
    if text == FULL:
        return None
    found = [_PART.fullmatch(part.strip()) for part in text.split(",")]
    given = {part[1]: int(part[2]) for part in found if part}
    if None in found or len(given) < len(found) or "window" not in given:
        raise ValueError(f"must be `{FULL}`, or a window with or without sinks and a stride: `{_EXAMPLE}`")
    if not 1 <= given["window"] <= _LARGEST or given.get("sinks", 0) > _LARGEST:
        raise ValueError(f"window must be from 1 to {_LARGEST} tokens, sinks from 0 on")
    if given.get("stride", 0) == 1 or given.get("stride", 0) > _LARGEST:
        raise ValueError("stride counts pages from 2 on; 0 reads no page between the sinks and the window")
    recent, sinks = (-(-given.get(name, 0) // BLOCK_SIZE) for name in ("window", "sinks"))
    return PagePolicy(recent, sinks, given.get("stride", 0))
