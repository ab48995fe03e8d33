"""Translates a sequence into the fields of vLLM's `SamplingParams`. Pure.

Where both have a parameter of the same name it means the same: bias before penalties, penalties before the
temperature, log probabilities by the raw logits. The rest is here.
"""

import hashlib
from typing import Any

from services.worker.guests.port import GuestSequence
from services.worker.rank_protocol.engine_sampling import EngineSampling
from shared.guests.needs import has_seed

_SEEDS = 2**63


def why_refused(sequence: GuestSequence) -> str:
    """Return why vLLM cannot go on with a sequence exactly, or not at all; empty: it can."""
    new = sequence.new
    if new.embedding is not None or new.scored >= 0:
        return "with RYZ_ENGINE=vllm there are neither embeddings nor log probabilities of prompts"
    if new.form is not None and _num_generated(sequence):
        return "vLLM's grammar begins with the answer, so it cannot go on in the middle of one"
    if new.form is not None and not new.form.lark:
        return "with RYZ_ENGINE=vllm no form is followed that begins behind free text"
    if _num_generated(sequence) and (new.sampling.presence_penalty or new.sampling.frequency_penalty):
        return (
            "vLLM counts the tokens that another engine generated as a prompt, so it cannot go on with "
            "presence_penalty or frequency_penalty"
        )
    return ""


def vllm_sampling(sequence: GuestSequence, vocab_size: int) -> dict[str, Any]:
    """Return the fields of a sequence's `SamplingParams`; those that are left out do nothing.

    The end of a sequence is the leader's to say: vLLM gets its tokens as `stop_token_ids`, and ignores the
    end-of-sequence token that the model's files may name. Stop strings are the leader's, too.
    """
    new, sampling = sequence.new, sequence.new.sampling
    ends = {*sampling.stop_token_ids, *(() if sampling.ignore_eos else new.eos_ids)}
    fields: dict[str, Any] = {
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "min_p": sampling.min_p,
        "repetition_penalty": sampling.repetition_penalty,
        "presence_penalty": sampling.presence_penalty,
        "frequency_penalty": sampling.frequency_penalty,
        "ignore_eos": True,
        "stop_token_ids": sorted(token_id for token_id in ends if token_id < vocab_size),
        "max_tokens": sequence.max_tokens,
        "min_tokens": min(max(0, sampling.min_tokens - _num_generated(sequence)), sequence.max_tokens),
    }
    bias = {token_id: value for token_id, value in sampling.logit_bias.items() if token_id < vocab_size}
    if bias:
        fields["logit_bias"] = bias
    if sampling.temperature and has_seed(sampling):  # vLLM draws for such sequences one by one
        fields["seed"] = _seed(sampling, new.choice, _num_generated(sequence))
    if sampling.logprobs >= 0:
        fields["logprobs"] = sampling.logprobs
    return fields


def _seed(sampling: EngineSampling, choice: int, num_generated: int) -> int:
    """Return vLLM's seed: of choice i it is the request's plus i, as vLLM has it for `n`.

    vLLM draws from a generator that begins with the sequence. One that goes on in mid-answer gets another
    seed, for it would draw the numbers of its beginning again.
    """
    seed = (sampling.seed + choice) % _SEEDS
    if not num_generated:
        return seed
    digest = hashlib.blake2b(f"{seed} {num_generated}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") % _SEEDS


def _num_generated(sequence: GuestSequence) -> int:
    return len(sequence.new.token_ids) - sequence.new.prompt_len
