"""What requests need of guests, what is refused, and which answers are a text of several engines."""

from typing import Any, get_args

import msgspec
import pytest

from services.worker.guests.port import Ability
from shared.codec import pack_tokens
from shared.errors import InvalidRequest, Unavailable
from shared.guests import needs as guest_needs
from shared.messages import (
    EmbeddingOptions,
    GenerateRequest,
    GuestCard,
    ResumePoint,
    Sampling,
    SamplingDefaults,
    StructuredOutput,
    ToolDefinition,
    ToolUse,
)

SOME = [pack_tokens([1, 2])]


def request(sampling: dict[str, Any] | None = None, **fields: Any) -> GenerateRequest:
    return GenerateRequest(
        request_id="r", model="m", prompt="x", sampling=Sampling(**(sampling or {})), **fields
    )


def resume(tokens: list[bytes] = SOME, **fields: Any) -> ResumePoint:
    return ResumePoint(token_ids=tokens, next_seq=2, **fields)


@pytest.mark.parametrize(
    ("sampling", "needs"),
    [
        ({}, {}),
        ({"temperature": 0.7, "top_p": 0.9, "max_tokens": 5, "stop": ["x"], "n": 2}, {}),
        ({"top_k": 5}, {"top_k": "top_k"}),
        ({"top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0}, {}),
        ({"temperature": 0.0, "top_k": 5, "min_p": 0.1, "seed": 7}, {}),
        ({"min_p": 0.1}, {"min_p": "min_p"}),
        ({"repetition_penalty": 1.1}, {"repetition_penalty": "repetition_penalty"}),
        ({"presence_penalty": 0.5}, {"penalties": "presence_penalty"}),
        ({"frequency_penalty": -0.5}, {"penalties": "frequency_penalty"}),
        ({"logit_bias": {3: 1.0}}, {"logit_bias": "logit_bias"}),
        ({"logprobs": 0}, {"logprobs": "logprobs"}),
        ({"prompt_logprobs": 0}, {"prompt_logprobs": "prompt_logprobs"}),
        ({"ignore_eos": True}, {"ignore_eos": "ignore_eos"}),
        ({"min_tokens": 3}, {"min_tokens": "min_tokens"}),
        ({"stop_token_ids": [3]}, {"token_ids_out": "stop_token_ids"}),
        ({"seed": 7}, {"seed": "seed"}),  # of a caller on the bus
        ({"seed": 7, "seed_given": False}, {}),  # the gateway made it
        ({"seed": 0, "seed_given": True}, {"seed": "seed"}),
    ],
)
def test_what_sampling_needs(sampling: dict[str, Any], needs: dict[str, str]) -> None:
    assert guest_needs.needs_of(request(sampling)) == needs


TOOL = ToolDefinition(name="f")
OBJECT = StructuredOutput(kind="json_object")
STATE = guest_needs.REBUILT_STATE
STRICT = msgspec.structs.replace(TOOL, strict=True)


@pytest.mark.parametrize(
    ("fields", "needs"),
    [
        ({"structured": OBJECT}, {"json_schema": "structured"}),
        (
            {"structured": StructuredOutput(kind="json_schema", definition="{}")},
            {"json_schema": "structured"},
        ),
        ({"structured": StructuredOutput(kind="choice", choices=["a"])}, {"choice": "structured"}),
        ({"structured": StructuredOutput(kind="regex", definition="a")}, {"grammar": "structured"}),
        (
            {"structured": StructuredOutput(kind="grammar", definition='start: "a"')},
            {"grammar": "structured"},
        ),
        ({"structured": StructuredOutput(kind="grammar", definition='root ::= "a"')}, {"gbnf": "structured"}),
        ({"structured": OBJECT, "continues": True}, {"json_schema": "structured", STATE: "structured"}),
        ({"tools": ToolUse(tools=[TOOL])}, {}),  # a grammar there is only a help
        ({"tools": ToolUse(tools=[TOOL]), "structured": OBJECT}, {"optional_calls": "structured"}),
        ({"tools": ToolUse(tools=[STRICT])}, {"optional_calls": "tools"}),
        ({"tools": ToolUse(tools=[TOOL], choice="required")}, {"grammar": "tools"}),
        (
            {"tools": ToolUse(tools=[TOOL], choice="named", name="f"), "structured": OBJECT},
            {"grammar": "tools"},
        ),
        ({"tools": ToolUse(tools=[STRICT], choice="none")}, {}),
        (
            {"tools": ToolUse(tools=[STRICT], choice="none"), "structured": OBJECT},
            {"json_schema": "structured"},
        ),
        ({"embedding": EmbeddingOptions()}, {"embeddings": "embedding"}),
        ({"prompt_only": True, "echo": True}, {"prompt_logprobs": "echo"}),
        ({"echo": True}, {}),
        ({"resume": resume([b""])}, {}),
        ({"resume": resume()}, {"continuation": "resume"}),
    ],
)
def test_what_other_fields_need(fields: dict[str, Any], needs: dict[str, str]) -> None:
    assert guest_needs.needs_of(request(**fields)) == needs


def test_an_adapter_is_a_need() -> None:
    assert guest_needs.needs_of(request(), adapter=True) == {"adapters": "model"}


@pytest.mark.parametrize(
    ("sampling", "fields", "state"),
    [
        ({"presence_penalty": 1.0}, {}, "presence_penalty"),
        ({"seed": 7}, {}, "seed"),
        ({"min_tokens": 9}, {}, "min_tokens"),
        ({}, {"structured": StructuredOutput(kind="json_object")}, "structured"),
        ({}, {"continues": True}, "continues"),
    ],
)
def test_what_no_guest_rebuilds_behind_tokens(
    sampling: dict[str, Any], fields: dict[str, Any], state: str
) -> None:
    needs = guest_needs.needs_of(request(sampling, resume=resume(), **fields))
    assert needs[guest_needs.REBUILT_STATE] == state
    assert guest_needs.REBUILT_STATE not in guest_needs.needs_of(request(sampling, **fields))


def test_what_a_guest_began_to_continue_goes_on_with_guests() -> None:
    begun = resume(fingerprint=guest_needs.guest_fingerprint("a"))
    assert guest_needs.needs_of(request(continues=True, resume=begun)) == {"continuation": "resume"}


def test_every_ability_that_can_be_lacking_is_asked_for_by_some_request_or_says_nothing_to_requests() -> None:
    asked = {
        need
        for one in (
            request({"top_k": 1, "min_p": 0.1, "repetition_penalty": 1.1, "presence_penalty": 1.0, "seed": 1,
                     "logit_bias": {1: 1.0}, "logprobs": 1, "prompt_logprobs": 1, "ignore_eos": True,
                     "min_tokens": 1, "stop_token_ids": [1]},
                    structured=StructuredOutput(kind="json_object"), resume=resume()),
            request(embedding=EmbeddingOptions()),
            request(structured=StructuredOutput(kind="choice", choices=["a"])),
            request(structured=StructuredOutput(kind="regex", definition="a")),
            request(structured=StructuredOutput(kind="grammar", definition='root ::= "a"')),
            request(tools=ToolUse(tools=[STRICT])),
        )
        for need in guest_needs.needs_of(one, adapter=True)
    }  # fmt: skip
    known = set(get_args(Ability))
    # the other two are how tokens travel to the guest, and a statement on its bytes
    assert known - asked == {"token_ids_in", "deterministic"}
    assert asked - known == {guest_needs.REBUILT_STATE}


def test_a_refusal_names_the_field_and_the_guest() -> None:
    lack = guest_needs.lack_of(["grammar", "seed"], {"logprobs": "logprobs", "grammar": "structured"})
    assert lack == ("grammar", "structured")
    new = guest_needs.refusal(lack, "llama.cpp", "m", resumed=False)
    assert isinstance(new, InvalidRequest)
    assert new.message == (
        "the guest llama.cpp cannot enforce `structured`, and model m has no other group; leave it out"
    )
    assert new.data == {"reason": "guest_cannot", "param": "structured"}
    begun = guest_needs.refusal(lack, "llama.cpp", "m", resumed=True)
    assert isinstance(begun, Unavailable)
    assert begun.data["reason"] == "guest_cannot"
    assert guest_needs.lack_of(["seed"], {"top_k": "top_k"}) is None


def test_defaults_that_a_guest_cannot_take_are_left_out() -> None:
    given = SamplingDefaults(temperature=0.5, top_k=20, repetition_penalty=1.1)
    assert guest_needs.without_lacking(given, ["top_k", "seed"]) == SamplingDefaults(
        temperature=0.5, repetition_penalty=1.1
    )
    assert guest_needs.without_lacking(given, []) is given


GUEST = GuestCard(name="a", lacks=["deterministic"])
EXACT = GuestCard(name="a")


@pytest.mark.parametrize(
    ("point", "guest", "is_text"),
    [
        (None, GUEST, False),
        (resume([b""], fingerprint="other"), GUEST, False),  # nothing was written yet
        (resume(fingerprint="own"), None, False),
        (resume(fingerprint="own"), EXACT, False),
        (resume(fingerprint="own"), GUEST, True),
        (resume(fingerprint="other"), None, True),
        (resume(fingerprint="own", resumed="text"), None, True),
    ],
)
def test_which_answers_are_a_text_of_several_engines(
    point: ResumePoint | None, guest: GuestCard | None, *, is_text: bool
) -> None:
    assert guest_needs.goes_on_as_text(point, "own", guest) is is_text


def test_fingerprints_of_guests_are_known_and_have_no_separators() -> None:
    fingerprint = guest_needs.guest_fingerprint("Qwen/Qwen3+x on vLLM")
    assert guest_needs.is_guest(fingerprint)
    assert not set("/+") & set(fingerprint)
    assert not guest_needs.is_guest("abcdef/fp16")
