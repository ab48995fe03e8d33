"""Requests that ask something of the prompt itself: its embedding, its log probabilities, its text.

Checks them, and prepares the first choice for them.
"""

import itertools

from services.worker.domain.answers.prompt_answer import PromptAnswer
from services.worker.domain.scheduling.sequence import Sequence
from services.worker.text.tokenizer import Tokenizer
from shared.errors import InvalidRequest
from shared.messages import GenerateRequest


def has_no_answer(request: GenerateRequest) -> bool:
    """Returns whether no token is generated for a request."""
    return request.prompt_only or request.embedding is not None


def check_prompt_request(request: GenerateRequest, hidden_size: int) -> None:
    """Checks what a request asks of its prompt.

    Args:
        hidden_size: Length of the model's hidden states.

    Raises:
        InvalidRequest: It contradicts itself; names the field.
    """
    if not has_no_answer(request):
        return
    what = "an embedding" if request.embedding is not None else "a request with `prompt_only`"
    if request.sampling.n != 1:
        raise InvalidRequest(f"{what} has one choice: `n` must be 1, got {request.sampling.n}", param="n")
    for name in ("tools", "structured"):
        if getattr(request, name) is not None:
            raise InvalidRequest(f"{what} has no answer that `{name}` could shape; leave it out", param=name)
    if request.session is not None and request.messages is not None:
        raise InvalidRequest(f"{what} is no turn of a session; leave `session` out", param="session")
    if request.embedding is None:
        return
    if request.sampling.prompt_logprobs >= 0 or request.echo:
        name = "echo" if request.echo else "prompt_logprobs"
        raise InvalidRequest(f"`{name}` and `embedding` are two requests; leave one out", param=name)
    if request.embedding.dimensions > hidden_size:
        raise InvalidRequest(
            f"`dimensions` must be at most {hidden_size}, the length of the model's embeddings, "
            f"got {request.embedding.dimensions}",
            param="dimensions",
            dimensions=hidden_size,
        )


def prompt_answer(request: GenerateRequest, sequence: Sequence, tokenizer: Tokenizer) -> PromptAnswer | None:
    """Prepares the sequence of the first choice for what is asked of the prompt.

    Returns:
        What the caller gets of it; None if nothing is asked.

    Raises:
        InvalidRequest: The resume point has more than the prompt.
    """
    scores = request.sampling.prompt_logprobs >= 0
    if not (scores or request.echo or request.prompt_ids or has_no_answer(request)):
        return None
    sequence.embedding, sequence.prompt_only = request.embedding, has_no_answer(request)
    resume, text, offsets = request.resume, "", list[int]()
    if scores:
        sequence.scored = resume.prompt_logprobs if resume is not None else 0
        if sequence.scored > sequence.prompt_len:
            raise InvalidRequest(
                f"resume.prompt_logprobs is {sequence.scored}, the prompt has {sequence.prompt_len} tokens",
                param="resume",
            )
    if request.echo:
        given = request.prompt if not request.truncate_prompt_tokens else None
        text, offsets = _echoed(given, sequence, tokenizer, with_offsets=scores)
        text = text[resume.prompt_text if resume is not None else 0 :]
    ids: list[int] = []
    if request.prompt_ids:
        ids = sequence.tokens[resume.prompt_ids if resume else 0 : sequence.prompt_len]
    return PromptAnswer(sequence, tokenizer.spelling, offsets, unsent_text=text, unsent_ids=ids)


def _echoed(
    given: str | None, sequence: Sequence, tokenizer: Tokenizer, *, with_offsets: bool
) -> tuple[str, list[int]]:
    """Returns the text of the prompt, and how many of its characters are before each token.

    A tokenizer may put a space before the text that is not part of it; where one changes the text in other
    ways (to another normal form of Unicode), the offsets are those in its own text.

    Args:
        given: The text, if the request has it.
        with_offsets: False: the offsets are not needed, and empty.
    """
    if given is not None and not with_offsets:
        return given, []
    detokenizer = tokenizer.detokenizer()
    pieces = [detokenizer.feed(token_id) for token_id in sequence.tokens[: sequence.prompt_len]]
    decoded = "".join(pieces) + detokenizer.flush()
    text = decoded if given is None else given
    shift = 1 if decoded == f" {text}" else 0
    ends = itertools.accumulate(map(len, pieces), initial=0)
    return text, [min(max(end - shift, 0), len(text)) for end in ends][:-1]
