"""What a stream of tokens looks like on the wire: the interface of the dialects that servers speak."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from services.worker.guests.port import FinishedBy
from services.worker.guests.remote.wire.event_reader import Event
from services.worker.rank_protocol.demanded_form import DemandedForm
from services.worker.rank_protocol.engine_sampling import EngineSampling
from services.worker.rank_protocol.plan import Alternative


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """What a server is asked for.

    Attributes:
        seed: None: none is sent.
        form: That the answer must have; None: it is free.
    """

    model: str
    prompt: list[int] | str
    max_tokens: int
    sampling: EngineSampling
    seed: int | None = None
    form: DemandedForm | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLogprob:
    """The log probability of a token and those of the likeliest ones."""

    token_id: int
    logprob: float
    top: list[Alternative]


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """What one event brings.

    Attributes:
        token_ids: None: only text is known.
        text_rules: Where text and token ids differ, the text is right: the server leaves out the ids of
            tokens that end within a character.
        counted: Tokens generated so far by the server's count, these included; -1: it does not say.
        prompt_tokens: Tokens of the prompt by its count; -1: it does not say.
        has_logprobs: It has log probabilities, also those that name no token ids.
        done: Nothing comes after it.
    """

    text: str = ""
    token_ids: list[int] | None = None
    text_rules: bool = False
    logprobs: Sequence[TokenLogprob] = ()
    has_logprobs: bool = False
    finished: FinishedBy = ""
    counted: int = -1
    prompt_tokens: int = -1
    done: bool = False


class Dialect(Protocol):
    """One API of streamed completions."""

    @property
    def path(self) -> str:
        """The path that is posted to."""
        ...

    def body(self, ask: Ask) -> dict[str, object]:
        """Return the request."""
        ...

    def read(self, event: Event) -> Piece:
        """Read an event.

        Raises:
            ServerError: It is none of this API, or reports an error.
        """
        ...
