"""What JetStream refuses, as errors of our family."""

from typing import Any

from shared.errors import Conflict, Unavailable

WRONG_LAST = frozenset({10071, 10164})  # another message stands under the subject than the caller said
NO_MESSAGE = 10037
NO_CONSUMER = 10014
NO_STREAM = 10059
_DISABLED = frozenset({10039, 10076, 10035})
_FULL = frozenset({10077, 10023, 10047, 10122})


class NoJetStream(Unavailable):
    """The broker has no JetStream, or the user may not use it."""


class NoStream(Unavailable):
    """The stream does not exist (any more)."""


class StreamFull(Unavailable):
    """The stream, or the disk of the broker, has no room."""


class WrongLastMessage(Conflict):
    """The subject's last message is not the one that the caller expected: another writer was first."""


class JetStreamRefused(Unavailable):
    """Any other refusal; `err_code` is JetStream's."""

    def __init__(self, message: str, /, **data: Any) -> None:
        super().__init__(message, **data)
        self.err_code = int(data.get("err_code", 0))


def no_jetstream(detail: str = "") -> NoJetStream:
    """The error for a broker that has no JetStream."""
    return NoJetStream(
        f"the broker has no JetStream, which files of a broker and batches need{detail}: give it a "
        "`jetstream { store_dir: ... }` (docs/batches.md), and the gateway's user its subjects",
        reason="no_jetstream",
    )


def raise_refusal(what: str, error: dict[str, Any]) -> None:
    """Raises the error in an answer of the broker."""
    code, text = int(error.get("err_code", 0)), str(error.get("description", "no reason given"))
    if code in WRONG_LAST:
        raise WrongLastMessage(f"{what}: {text}", reason="wrong_last_message")
    if code in _DISABLED:
        raise no_jetstream(f" ({text})")
    if code in _FULL:
        raise StreamFull(
            f"{what}: the broker's disk or its limit is full ({text}); make room, or raise `max_file` of its "
            "JetStream",
            reason="jetstream_full",
            retry_after_s=5.0,
        )
    if code == NO_STREAM:
        raise NoStream(f"{what}: {text}", reason="no_stream")
    raise JetStreamRefused(f"{what}: {text}", reason="jetstream", err_code=code)
