"""The guest port: streams of tokens from an engine that batches and keeps KV by itself.

`GuestEngine` puts it behind the engine port, so that admission, shares, deadlines, cancels, stop strings,
sessions and failover stay the leader's. A guest knows sequences only: it is given one with all its tokens,
also those that another group generated, and brings the tokens behind them.
"""

from collections.abc import Callable
from typing import Literal, Protocol

import msgspec

from services.worker.rank_protocol.plan import NewSequence, Sampled

# What not every guest can do. What is missing here is refused at the door by name, never left out.
Ability = Literal[
    "adapters",  # LoRA adapters that the guest has loaded under a name
    "choice",  # one of several texts
    "continuation",  # goes on behind tokens, or text, that another engine generated
    "deterministic",  # greedy answers are the same in any company; shown by the contract suite, not believed
    "embeddings",
    "gbnf",  # grammars of callers in llama.cpp's notation
    "grammar",  # all that are made here, as Lark for llguidance: schemas, expressions, required calls
    "ignore_eos",  # goes on behind tokens that end a sequence
    "json_schema",
    "logit_bias",
    "logprobs",
    "min_p",
    "min_tokens",
    "optional_calls",  # strict calls, or calls beside a form, that the model may make or not
    "penalties",  # presence and frequency
    "prompt_logprobs",
    "repetition_penalty",
    "seed",
    "token_ids_in",  # prompts as token ids; without it they are sent as text
    "token_ids_out",  # answers as token ids; without it text is tokenized again, and says the same
    "top_k",
]
FinishedBy = Literal["", "stop", "length"]


class GuestFacts(msgspec.Struct, frozen=True, kw_only=True):
    """A guest that is ready.

    Attributes:
        name: What it is, for people, such as `vLLM 0.32` or `llama.cpp`.
        fingerprint: Names the model and the kind of guest; groups of another one cannot claim equal bytes.
        context_length: Tokens that a sequence may have, the prompt included.
        vocab_size: Token ids are below it.
        max_running: Sequences that it computes at once; 0: it does not say.
        kv_tokens: Tokens that its KV cache has room for; 0: it does not say.
    """

    name: str
    fingerprint: str
    context_length: int
    vocab_size: int
    max_running: int = 0
    kv_tokens: int = 0
    abilities: frozenset[Ability] = frozenset()


class GuestSequence(msgspec.Struct, frozen=True, kw_only=True):
    """A sequence that a guest is to go on with.

    Attributes:
        new: Tokens, sampling and all else that ranks are told.
        max_tokens: Tokens that it may still bring.
        adapter: Name under which the guest has its adapter; empty: the base.
    """

    new: NewSequence
    max_tokens: int
    adapter: str = ""


class GuestPart(msgspec.Struct, frozen=True, kw_only=True):
    """What a guest has brought of a sequence.

    Attributes:
        sampled: Tokens in order; with an end-of-sequence token as the last one if the guest ended by it.
        finished: Why it brings no more; empty: it goes on.
        error: Why it cannot go on, one sentence; the sequence is over. Its request goes on at another group,
            if there is one.
    """

    seq_id: int
    sampled: list[Sampled] = []
    finished: FinishedBy = ""
    error: str = ""


class Guest(Protocol):
    """An engine of others. All methods belong to one event loop."""

    async def start(self) -> GuestFacts:
        """Return when it answers; it may be called again after `stop`.

        Raises:
            EngineFailed: It does not answer; the text is one sentence with the remedy.
            EngineRefused: It answers, and can never serve this model with these settings.
        """
        ...

    def watch(self, on_part: Callable[[GuestPart], None], on_failure: Callable[[str], None]) -> None:
        """Call `on_part` for all that comes, in the order of each sequence; `on_failure` when it is gone.

        There is one watcher, set before `start`. After a failure nothing more comes until the next `start`.
        """
        ...

    def open(self, sequence: GuestSequence) -> None:
        """Begin a sequence. Whatever is wrong with it comes as a part with an error."""
        ...

    def close(self, seq_id: int) -> None:
        """End a sequence, which may be over already or unknown; the guest stops computing it at once."""
        ...

    def status(self) -> dict[str, object]:
        """Return its row for `ryz status`."""
        ...

    async def stop(self) -> None:
        """End everything. May be called twice, and after a failure."""
        ...
