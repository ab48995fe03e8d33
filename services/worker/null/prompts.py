"""What the null engine says of prompts: an embedding made of a hash of the tokens, and equal scores."""

import hashlib
import math
from array import array

from services.worker.rank_protocol.plan import NewSequence
from services.worker.rank_protocol.prompt_parts import PromptPart, PromptScore
from shared.codec import pack_tokens
from shared.messages import EmbeddingOptions

HIDDEN_SIZE = 64
LOGPROB = -1.0


def null_embedding(token_ids: list[int], options: EmbeddingOptions) -> bytes:
    """Returns the embedding of a prompt, packed; equal tokens have equal ones."""
    seed = options.pooling.encode() + pack_tokens(token_ids)
    values = [byte - 127.5 for byte in hashlib.shake_128(seed).digest(HIDDEN_SIZE)]
    values = values[: options.dimensions or HIDDEN_SIZE]
    length = math.hypot(*values) if options.normalize else 1.0
    packed = array("f", [value / length for value in values])
    return packed.tobytes()


def prompt_parts(new: NewSequence, start: int, end: int) -> list[PromptPart]:
    """Returns what computing the tokens from `start` to `end` brings of the prompt."""
    if new.embedding is not None:
        if end < new.prompt_len:
            return []
        return [PromptPart(seq_id=new.seq_id, embedding=null_embedding(new.token_ids, new.embedding))]
    first, last = max(start + 1, new.scored), min(end + 1, new.prompt_len)
    if first >= last:
        return []
    count = new.sampling.prompt_logprobs
    scores = [
        PromptScore(LOGPROB, [(token_id, LOGPROB)] if count else []) for token_id in new.token_ids[first:last]
    ]
    return [PromptPart(seq_id=new.seq_id, first=first, scores=scores)]
