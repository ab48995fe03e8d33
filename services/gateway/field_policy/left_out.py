"""What a request asked for and its answer was made without: fields, tools, blocks of text. Pure.

Callers see it in the header `X-Ryz-Ignored`, and in its forms on gRPC, NATS and WebSockets.
"""

from collections.abc import Sequence
from typing import Literal, NamedTuple

Kind = Literal["field", "tool", "block"]
MAX_SHOWN = 16  # entries of a header
_LONGEST = 64  # characters of a name


class LeftOut(NamedTuple):
    """One part of a body that was left out.

    Attributes:
        name: Its place in the body, such as `tools[2]`.
        kind: What it is, for the counter.
        why: A few words for the caller, such as the type of a tool; empty: the field is not known.
    """

    name: str
    kind: Kind = "field"
    why: str = ""

    @property
    def shown(self) -> str:
        """The entry in the header."""
        name = self.name[:_LONGEST].replace(",", "_")
        return f"{name} ({self.why[:_LONGEST].replace(',', '_')})" if self.why else name


def header_text(parts: Sequence[LeftOut]) -> str:
    """The value of `X-Ryz-Ignored`: the entries with commas between them, `MAX_SHOWN` at most."""
    shown = [part.shown for part in parts[:MAX_SHOWN]]
    if len(parts) > MAX_SHOWN:
        shown.append(f"and {len(parts) - MAX_SHOWN} more")
    text = ", ".join(shown)
    return "".join(character if " " <= character <= "~" else "_" for character in text)
