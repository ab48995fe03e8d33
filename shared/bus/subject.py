"""Checks subjects, patterns and sizes of messages, and matches subjects with patterns."""

import re
from functools import lru_cache

from shared.bus.accounts import in_inbox
from shared.errors import InvalidRequest, RequestTooLarge, Unavailable
from shared.subjects import PREFIX, OutsideService

MAX_SUBJECT_BYTES = 1900  # two subjects and numbers fit into a line of the broker's protocol, 4 KiB
_PLAIN = re.compile(r"[^\s.*>]+(?:\.[^\s.*>]+)*")
_EDGES = ("", ".")
_PATTERN = re.compile(r"(?:[^\s.*>]+|\*)(?:\.(?:[^\s.*>]+|\*))*(?:\.>)?|>")


def check_subject(subject: str) -> None:
    """Raises `InvalidRequest` unless one can publish there: tokens and dots, no wildcard, no space.

    The broker would close the connection of a client that publishes to a subject that is too long.
    """
    if not (_is_plain(subject) and _is_short(subject)):
        raise InvalidRequest(f"{subject[:100]!r} is no subject that one can publish to", param="subject")


def can_answer(reply_to: str, caller: OutsideService | None = None) -> bool:
    """Returns whether answers to that caller may go there.

    The subject must be valid and none that services listen on. For a caller outside it must be in its inbox.
    """
    # a longer text is no subject, and is not kept
    return len(reply_to) <= MAX_SUBJECT_BYTES and _can_answer(reply_to, caller)


@lru_cache(maxsize=1024)  # all requests of a client process name one subject
def _can_answer(reply_to: str, caller: OutsideService | None) -> bool:
    if not reply_to or reply_to.startswith(f"{PREFIX}.") or not in_inbox(reply_to, caller):
        return False
    return _is_plain(reply_to) and _is_short(reply_to)


def _is_plain(subject: str) -> bool:
    # what the expression says, in half of its time for the subjects of services
    if subject.isascii() and subject.isprintable() and " " not in subject:
        return (
            "*" not in subject
            and ">" not in subject
            and ".." not in subject
            and subject[:1] not in _EDGES
            and subject[-1] != "."
        )
    return _PLAIN.fullmatch(subject) is not None


def _is_short(subject: str) -> bool:
    length = len(subject)  # a character has four bytes at most
    return length * 4 <= MAX_SUBJECT_BYTES or len(subject.encode()) <= MAX_SUBJECT_BYTES


def check_pattern(pattern: str) -> None:
    """Raises `InvalidRequest` unless one can subscribe to it; `*` and `>` are whole tokens, `>` is last."""
    if not _PATTERN.fullmatch(pattern):
        raise InvalidRequest(f"{pattern!r} is no subject that one can subscribe to", param="subject")


def check_size(subject: str, size: int, limit: int) -> None:
    """Raises `RequestTooLarge` when a message is larger than the broker takes."""
    if size > limit:
        raise RequestTooLarge(
            f"the message for {subject} has {size} bytes, the broker takes at most {limit}",
            size=size,
            limit=limit,
        )


def not_sent(subject: str) -> Unavailable:
    """Returns the error of `publish` without a connection."""
    return broker_away(f"no connection to the broker, {subject} was not sent")


def broker_away(what: str) -> Unavailable:
    """Returns the error of calls that the broker cannot answer now; `what` is its text."""
    return Unavailable(what, reason="broker_unavailable")


def matches(pattern: str, subject: str) -> bool:
    """Returns whether a subscription to `pattern` gets messages on `subject`."""
    wanted, given = pattern.split("."), subject.split(".")
    if wanted[-1] == ">":
        wanted.pop()
        if len(given) <= len(wanted):
            return False
        given = given[: len(wanted)]
    return len(wanted) == len(given) and all(w in ("*", g) for w, g in zip(wanted, given, strict=True))
