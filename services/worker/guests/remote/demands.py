"""What a sequence demands of a server, and what is sent for it."""

import hashlib
from collections.abc import Callable, Mapping
from typing import Final

from services.worker.guests.port import Ability, GuestSequence
from services.worker.guests.remote.tokens.prompt_text import PromptText
from services.worker.guests.remote.wire.dialect import Ask
from services.worker.rank_protocol.engine_sampling import EngineSampling
from services.worker.rank_protocol.plan import NewSequence
from shared.guests.needs import FORMS, form_need

_MAX_SEED = 2**31  # what every server takes
_WANTS: Final[Mapping[Ability, Callable[[EngineSampling], bool]]] = {
    "ignore_eos": lambda sampling: sampling.ignore_eos,
    "logit_bias": lambda sampling: bool(sampling.logit_bias),
    "logprobs": lambda sampling: sampling.logprobs >= 0,
    "min_p": lambda sampling: sampling.min_p > 0 and sampling.temperature > 0,
    "min_tokens": lambda sampling: sampling.min_tokens > 0,
    "penalties": lambda sampling: bool(sampling.presence_penalty or sampling.frequency_penalty),
    "prompt_logprobs": lambda sampling: sampling.prompt_logprobs >= 0,
    "repetition_penalty": lambda sampling: sampling.repetition_penalty != 1.0,
    "token_ids_out": lambda sampling: bool(sampling.stop_token_ids),
    "top_k": lambda sampling: sampling.top_k > 0 and sampling.temperature > 0,
}
# what counts or reads tokens of the answer, which for the server are a part of the prompt once it goes on
# behind them
_OF_ANSWERS: Final = frozenset({"min_tokens", "penalties", *FORMS})


def unmet(sequence: GuestSequence, abilities: frozenset[Ability]) -> str:
    """Return why a server with these abilities cannot go on with a sequence; empty: it can."""
    new = sequence.new
    if new.embedding is not None:
        return "makes no embeddings here"
    wanted: set[str] = {ability for ability, wants in _WANTS.items() if wants(new.sampling)}
    if new.form is not None and "grammar" not in abilities:
        wanted.add(form_need(new.form.structured))
    elif new.form is not None:
        wanted.add("grammar")
        if not new.form.lark:
            return "cannot follow a form of calls that the model may make or not"
    if sequence.adapter:
        wanted.add("adapters")
    if missing := sorted(wanted - abilities):
        return f"cannot do what the request asks for: {', '.join(missing)}"
    if len(new.token_ids) > new.prompt_len and (lost := sorted(wanted & _OF_ANSWERS)):
        return f"cannot go on in the middle of an answer with {', '.join(lost)}"
    return ""


def ask_for(
    sequence: GuestSequence, model: str, abilities: frozenset[Ability], prompts: PromptText | None
) -> Ask:
    """Return what is sent for a sequence.

    Args:
        model: The name of the base model there.
        prompts: Spells prompts; None: the server takes token ids.

    Raises:
        ServerError: The prompt cannot be said as text.
    """
    new = sequence.new
    return Ask(
        model=sequence.adapter or model,
        prompt=new.token_ids if prompts is None else prompts.text(new.token_ids),
        max_tokens=sequence.max_tokens,
        sampling=new.sampling,
        seed=_seed(new) if "seed" in abilities and new.sampling.temperature > 0 else None,
        form=new.form,
    )


def _seed(new: NewSequence) -> int:
    """Return a seed for this choice and position; the request's own where the first choice begins."""
    seed, generated = new.sampling.seed, len(new.token_ids) - new.prompt_len
    if seed < _MAX_SEED and not new.choice and not generated:
        return seed
    key = f"{seed} {new.choice} {generated}".encode()
    return int.from_bytes(hashlib.blake2b(key, digest_size=8).digest()) % _MAX_SEED
