"""What differs from run to run and is not compared: each kind is named here with its reason.

A constant mask replaces what it finds by the mask's name. A numbered one gives each different value a number
within its exchange, so that two places which have to agree still have to.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Mask:
    """One kind of value.

    Attributes:
        name: Stands in its place.
        pattern: Finds it; its group `value` is what is masked.
        why: The reason.
        numbered: Different values get different numbers.
        beside: The mask holds only in an exchange that has a value of the mask of this name; empty: anywhere.
    """

    name: str
    pattern: re.Pattern[str]
    why: str
    numbered: bool = False
    beside: str = ""


def _mask(name: str, pattern: str, why: str, *, numbered: bool = False, beside: str = "") -> Mask:
    return Mask(name, re.compile(pattern), why, numbered, beside)


_TIMES = (
    "created", "created_at", "created_ms", "updated_ms", "exported_ms", "in_progress_at", "finalizing_at",
    "completed_at", "failed_at", "expires_at", "cancelling_at", "cancelled_at",
)  # fmt: skip
_IS = '(?:: |":")'  # a header, or a field of JSON
MASKS = (
    _mask(
        "request",
        r"(?<![0-9A-Za-z])r-(?P<value>[0-9a-f]{24})",
        "96 random bits of a request's id",
        numbered=True,
    ),
    _mask(
        "session", r"\bs-[0-9a-f]{16}-(?P<value>[0-9a-f]{16})", "the random half of a made id", numbered=True
    ),
    _mask("call", r"\bcall_(?P<value>[0-9a-f]{24})", "follows from the request's id", numbered=True),
    _mask("file", r"\bfile-(?P<value>[0-9a-f]{24})", "random bits of a file's id", numbered=True),
    _mask("batch", r"\bbatch_(?P<value>[0-9a-f]{24})", "random bits of a batch's id", numbered=True),
    _mask("line", r"batch_req_(?P<value>[0-9a-f]{23,24})", "follows from the batch's id", numbered=True),
    _mask(
        "time",
        rf'"(?:{"|".join(_TIMES)})":(?P<value>\d{{10,13}})\b',
        "when it was, in seconds or milliseconds",
    ),
    _mask(
        "started",
        r'"created(?:_at|_s)":"?(?P<value>20\d\d-[-:T0-9]+Z|\d{10})',
        "when the model's group started",
    ),
    _mask("date", r"^< [Dd]ate: (?P<value>.+)$", "when it was"),
    _mask("age", r'"age_s":(?P<value>[\d.]+)', "seconds since the session began"),
    _mask("life", r'"ttl_s":(?P<value>\d+)', "seconds until the session is forgotten"),
    _mask("length", r"^< content-length: (?P<value>\d+)$", "has the digits of the age in it", beside="age"),
    _mask("digest", r'"sha256":"(?P<value>[0-9a-f]{64})"', "of a file that has times in it"),
    _mask("cursor", r'"next_cursor":"(?P<value>[^"]+)"', "has the time of the last session in it"),
    _mask("ms", r"^< openai-processing-ms: (?P<value>\d+)$", "how long the answer took"),
    _mask("reset", rf"x-ratelimit-reset-requests{_IS}(?P<value>[\d.]+)s", "falls while the test runs"),
    _mask("left", rf"x-ratelimit-remaining-tokens{_IS}(?P<value>\d+)", "rises while the test runs"),
    _mask("token-reset", rf"x-ratelimit-reset-tokens{_IS}(?P<value>[\d.]+)s", "falls while the test runs"),
    _mask("wait", r"retry in (?P<value>\d{2,3}\.\d\d) s", "falls while the test runs"),
    _mask("retry", r"[Rr]etry-[Aa]fter: (?P<value>\d{2,4})$", "the same, rounded up"),
    _mask("pushback", r"grpc-retry-pushback-ms: (?P<value>\d{2,4}000)$", "the same in milliseconds"),
    _mask(
        "retry_s", r'"retry_after_s": \{"double_param": (?P<value>9\d\d|1000)\.0\}', "the same on a stream"
    ),
    _mask("retry-json", r'"retry-after":"(?P<value>9\d\d|1000)"', "the same on a WebSocket"),
    _mask("accept", r"^< Sec-WebSocket-Accept: (?P<value>\S+)$", "follows from the client's random key"),
)


@dataclass(frozen=True)
class Masked:
    """An exchange as it is compared.

    Attributes:
        lines: With masks in place.
        spans: By line, the ranges of characters before that were masked.
    """

    lines: list[str]
    spans: list[list[tuple[int, int]]]


def mask_lines(lines: Sequence[str]) -> Masked:
    """Masks one exchange."""
    numbers: dict[tuple[str, str], int] = {}
    masked, spans = [], []
    present = {mask.name for mask in MASKS if not mask.beside and any(map(mask.pattern.search, lines))}
    masks = [mask for mask in MASKS if mask.name in present or mask.beside in present]
    for line in lines:
        found = sorted(_found(line, masks), key=lambda one: one[:2])
        text, at, taken = "", 0, []
        for start, end, mask in found:
            if start < at:
                continue  # inside of what another mask has taken
            value = line[start:end]
            shown = mask.name
            if mask.numbered:
                known = [key for key in numbers if key[0] == mask.name]
                shown += f" {numbers.setdefault((mask.name, value), len(known) + 1)}"
            text += f"{line[at:start]}<{shown}>"
            at = end
            taken.append((start, end))
        masked.append(text + line[at:])
        spans.append(taken)
    return Masked(masked, spans)


def _found(line: str, masks: Sequence[Mask]) -> list[tuple[int, int, Mask]]:
    return [(*found.span("value"), mask) for mask in masks for found in mask.pattern.finditer(line)]
