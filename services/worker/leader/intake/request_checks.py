"""Checks a request against the model, the engine and itself; each refusal names the field at fault."""

from services.worker.leader.engine_state import EngineFacts
from services.worker.model_files.model import Model
from shared.codec import unpack_tokens
from shared.errors import InvalidRequest, Unavailable
from shared.guests.needs import goes_on_as_text, is_guest, lack_of, needs_of, refusal
from shared.messages import Adapter, GenerateRequest, ResumePoint
from shared.messages.answer_parts import Resumed

_PROMPT_FIELDS = ("messages", "prompt", "prompt_token_ids")


def check_prompt_fields(request: GenerateRequest, model: Model) -> None:
    """Checks that a request has one prompt, of a form that the model takes.

    Raises:
        InvalidRequest: It has none or several, or messages for a model without a chat template.
    """
    given = [name for name in _PROMPT_FIELDS if getattr(request, name) is not None]
    if len(given) != 1:
        raise InvalidRequest(
            f"give one of messages, prompt and prompt_token_ids, not {' and '.join(given) or 'none'}",
            param=given[1] if given else "messages",
        )
    if request.messages is not None and model.template is None:
        raise InvalidRequest(
            f"model {model.name} has no chat template; send a prompt instead of messages",
            param="messages",
        )


def check_resume(
    request: GenerateRequest, resume: ResumePoint, adapter: Adapter | None, facts: EngineFacts, repeated: int
) -> None:
    """Checks that an answer can be resumed here.

    Args:
        request: The request with the resume point.
        resume: The tokens so far, for each choice.
        adapter: With which it would go on.
        facts: Of the engine that is to go on.
        repeated: Tokens of a continued answer that may be generated again.

    Raises:
        InvalidRequest: The tokens so far are not those of such a request.
        Unavailable: The answer was begun with other weights. Those of guests are not known: answers go on
            between engines of ours and guests, and say so (`Done.resumed`).
    """
    if len(resume.token_ids) != request.sampling.n:
        raise InvalidRequest(
            f"resume.token_ids needs one entry per choice, {request.sampling.n}, got {len(resume.token_ids)}",
            param="resume",
        )
    ours, theirs = facts.fingerprint_with(adapter), resume.fingerprint
    with_guest = facts.guest is not None or is_guest(theirs)
    if theirs and theirs != ours and not with_guest:
        raise Unavailable(
            f"model {request.model} has other weights here than the group that began with the answer",
            reason="other_weights",
            retry_after_s=1.0,
        )
    holds = facts.context_length
    check_resume_length(resume, min(request.sampling.max_tokens or holds, holds) + repeated)


def check_guest(request: GenerateRequest, adapter: Adapter | None, facts: EngineFacts) -> None:
    """Checks that the guest of the group, if it has one, can do what a request needs.

    Routers know it as well: what comes here is for no other group.

    Raises:
        InvalidRequest: It cannot; names the field.
        Unavailable: The same, of an answer that would have had to go on here.
    """
    guest = facts.guest
    if guest is None:
        return
    needs = needs_of(request, adapter=adapter is not None)
    if (lack := lack_of(guest.lacks, needs)) is not None:
        raise refusal(lack, guest.name, request.model, resumed="continuation" in needs)


def resumed_as(request: GenerateRequest, adapter: Adapter | None, facts: EngineFacts) -> Resumed:
    """Returns how an answer goes on here; see `Done.resumed`."""
    fingerprint = facts.fingerprint_with(adapter)
    return "text" if goes_on_as_text(request.resume, fingerprint, facts.guest) else ""


def check_resume_length(resume: ResumePoint, max_tokens: int) -> None:
    """Refuses a resume point with more tokens than an answer may have, by the number of its bytes."""
    longest = max(map(len, resume.token_ids)) // 4
    if longest > max_tokens:
        raise InvalidRequest(
            f"resume.token_ids has {longest} tokens of a choice, which may have {max_tokens}", param="resume"
        )


def check_continued(request: GenerateRequest) -> None:
    """Checks that a request has an answer to go on from, and nothing that does not go with it."""
    messages = request.messages or []
    if not messages or messages[-1].role != "assistant":
        raise InvalidRequest(
            "an answer is continued from the last message, which must be the assistant's", param="messages"
        )
    for name in ("truncate_prompt_tokens", "embedding", "prompt_only"):
        if getattr(request, name):
            raise InvalidRequest(f"`{name}` does not go with an answer that is continued", param=name)


def check_ids(request: GenerateRequest, tokens: list[int], facts: EngineFacts) -> None:
    """Refuses token ids beyond the engine's vocabulary, in the prompt's tokens and in the sampling fields."""
    prompt = next((name for name in _PROMPT_FIELDS if getattr(request, name) is not None), "prompt")
    for param, ids in (
        (prompt, tokens),
        ("logit_bias", request.sampling.logit_bias),
        ("stop_token_ids", request.sampling.stop_token_ids),
    ):
        if ids and max(ids) >= facts.vocab_size:
            raise InvalidRequest(
                f"{param} has token {max(ids)}, the vocabulary ends at {facts.vocab_size - 1}",
                param=param,
            )


def resumed_tokens(request: GenerateRequest, facts: EngineFacts) -> list[list[int]]:
    """Returns the tokens that earlier attempts have generated, for each choice.

    Raises:
        InvalidRequest: A token is beyond the engine's vocabulary.
    """
    if request.resume is None:
        return [[] for _ in range(request.sampling.n)]
    choices = [unpack_tokens(packed) for packed in request.resume.token_ids]
    highest = max((max(tokens) for tokens in choices if tokens), default=0)
    if highest >= facts.vocab_size:
        raise InvalidRequest(
            f"resume.token_ids has token {highest}, the vocabulary ends at {facts.vocab_size - 1}",
            param="resume",
        )
    return choices


def check_adapter(adapter: Adapter | None, facts: EngineFacts) -> None:
    """Checks that the engine computes with adapters, and has room for this one.

    Raises:
        InvalidRequest: It does not, or never has.
    """
    if adapter is None:
        return
    if not facts.adapter_bytes:
        raise InvalidRequest(
            f"the engine of {adapter.base} computes without adapters; ask for the base",
            param="model",
            reason="adapter_not_loaded",
        )
    if adapter.num_bytes > facts.adapter_bytes:
        raise InvalidRequest(
            f"the adapter {adapter.model} takes {adapter.num_bytes:,} bytes, and a group of {adapter.base} "
            f"has {facts.adapter_bytes:,} for all; raise RYZ_ADAPTER_BYTES",
            param="model",
            reason="adapter_not_loaded",
        )
