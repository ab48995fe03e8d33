"""Translates the fields that chat and text completions share. Pure: ids, seeds and sessions are arguments."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

from services.gateway.formats.fields.answer_forms import form_of
from services.gateway.formats.fields.sampling_body import SamplingBody
from shared.errors import InvalidRequest
from shared.messages import (
    Sampling,
    SessionRef,
    StructuredOutput,
)

# the caller's names of fields of `GenerateRequest`
NAMES_IN_BODY = {
    "template.variables": "chat_template_kwargs",
    "template.reasoning_effort": "reasoning_effort",
    "template": "chat_template_kwargs",
    "continues": "continue_final_message",
}


NEWER_LENGTH = {"max_tokens": "max_completion_tokens"}  # of a body that has the newer field


# options of sampling that a plain body may have too
PLAIN_SAMPLING = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "n",
    "ignore_eos",
)


@dataclass(frozen=True, slots=True)
class Origin:
    """The fields of a request that do not come from its body."""

    request_id: str
    tenant: str
    seed: int
    session: SessionRef | None


def given_values(body: object, names: Iterable[str]) -> dict[str, Any]:
    """The sampling options that a body has: a default that is named counts as a value on the wire."""
    found = {name: value for name in names if (value := getattr(body, name)) is not None}
    if found.get("top_k") == -1:
        found["top_k"] = 0
    return found


def sampling_of(body: SamplingBody, *, seed: int, max_tokens: int, logprobs: int) -> Sampling:
    """The sampling options of a body; `seed` is used if the body has none."""
    wanted = given_values(body, (*PLAIN_SAMPLING, "stop_token_ids", "min_tokens"))
    if body.prompt_logprobs is not None:
        if body.stream:
            raise InvalidRequest(
                "`prompt_logprobs` is not streamed: leave `stream` out, or use `echo` with `logprobs` on "
                "/v1/completions",
                param="prompt_logprobs",
            )
        wanted["prompt_logprobs"] = body.prompt_logprobs
    return Sampling(
        seed=seed if body.seed is None else body.seed % 2**63,
        seed_given=body.seed is not None,
        max_tokens=max_tokens,
        stop=body.stop,
        logit_bias=body.logit_bias,
        logprobs=logprobs,
        **wanted,
    )


def delivery_of(body: SamplingBody) -> Literal["stream", "whole"]:
    """How the answer comes; raises `InvalidRequest` for options of a stream that is none."""
    if body.stream_options is not None and not body.stream:
        raise InvalidRequest("`stream_options` needs `stream` to be true", param="stream_options")
    return "stream" if body.stream else "whole"


def structure_of(body: SamplingBody) -> StructuredOutput | None:
    """The form that the answer must have; raises `InvalidRequest` if a field is wrong."""
    found = form_of(vars(body))
    return found[1] if found is not None else None


def field_names_of(body: SamplingBody, *, newer_length: bool = False) -> dict[str, str]:
    """The caller's names of fields of `GenerateRequest`, for a leader's errors.

    Args:
        body: The checked body.
        newer_length: It has the newer field for the length of an answer.
    """
    found, names = form_of(vars(body)), NAMES_IN_BODY
    if newer_length:
        names = names | NEWER_LENGTH
    if found is None:
        return names
    return names | dict.fromkeys(("structured.definition", "structured.choices", "structured"), found[0])
