"""The messages between a leader and its trial process: msgpack behind a length of four bytes."""

from typing import Any, Literal

import msgspec

from services.worker.text.grammars.limits import GrammarLimits

LENGTH_BYTES = 4
READY = 0  # the number of the first verdict, which says that trials are served

# slow: it used its CPU time. large: it met the limit on memory, or crashed. starved: it got no CPU time, or
# was killed from outside. unclear: it failed in another way.
Outcome = Literal["passed", "refused", "slow", "large", "starved", "unclear"]


class TrialSetup(msgspec.Struct, frozen=True, kw_only=True):
    """The first message to a trial process.

    Attributes:
        tokens: Bytes of each token that the tokenizer knows.
        special_ids: Tokens that are no text.
        cpu_s: CPU time that a trial may use.
        memory_bytes: Memory that it may use besides what the process has.
    """

    tokens: list[bytes]
    special_ids: list[int]
    ends: list[int]
    vocab_size: int
    limits: GrammarLimits
    cpu_s: float
    memory_bytes: int


class Trial(msgspec.Struct, frozen=True):
    """Asks to compile a grammar.

    Attributes:
        form: The encoded grammar that is compiled.
    """

    number: int
    form: bytes


class TrialResult(msgspec.Struct, frozen=True):
    """What came of a trial.

    Attributes:
        outcome: How it ended.
        message: Of the error, if it was refused.
    """

    number: int
    outcome: Outcome
    message: str = ""
    data: dict[str, Any] = {}


def frame_of(message: TrialSetup | Trial | TrialResult) -> bytes:
    """Returns a message as it is sent."""
    body = msgspec.msgpack.encode(message)
    return len(body).to_bytes(LENGTH_BYTES, "big") + body
