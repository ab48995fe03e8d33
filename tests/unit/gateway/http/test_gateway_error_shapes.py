"""Errors have the shape of the API whose path was asked, whether a route or a layer before it refuses."""

import json

import pytest

from services.gateway.admission.errors.refusals import HttpRefusal, answer_for
from services.gateway.admission.errors.shapes import error_body, renamed
from shared.errors import (
    ContextLengthExceeded,
    InvalidRequest,
    Overloaded,
    RateLimited,
    RequestTooLarge,
    RyzError,
)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (InvalidRequest("`n` is wrong", param="n"), "invalid_request_error"),
        (HttpRefusal(401, "missing_api_key", "send a key"), "authentication_error"),
        (HttpRefusal(403, "origin_not_allowed", "no"), "permission_error"),
        (HttpRefusal(404, "unknown_url", "no"), "not_found_error"),
        (HttpRefusal(405, "method_not_allowed", "no"), "invalid_request_error"),
        (RequestTooLarge("too large"), "request_too_large"),
        (RateLimited("too many"), "rate_limit_error"),
        (Overloaded("full"), "overloaded_error"),
        (RuntimeError("secret"), "api_error"),
    ],
)
@pytest.mark.parametrize("path", ["/v1/messages", "/v1/messages/count_tokens"])
def test_errors_on_anthropics_paths_have_anthropics_shape(error: Exception, kind: str, path: str) -> None:
    body = json.loads(error_body(answer_for(error), path, "mine"))
    assert (body["type"], body["request_id"], body["error"]["type"]) == ("error", "mine", kind)
    assert body["error"]["message"]


@pytest.mark.parametrize(
    ("sizes", "words"),
    [
        (
            {"context_length": 4096, "prompt_tokens": 5000, "max_tokens": 64},
            "prompt is too long: 5000 tokens > 4096 maximum; too long",
        ),
        (
            {"context_length": 4096, "prompt_tokens": 4000, "max_tokens": 32000},
            "input length and `max_tokens` exceed context limit: 4000 + 32000 > 4096; too long",
        ),
        (
            {"context_length": 4096, "prompt_tokens": 4096},
            "prompt is too long: 4096 tokens > 4096 maximum; too long",
        ),
        ({}, "too long"),
    ],
)
def test_a_prompt_that_does_not_fit_is_told_in_anthropics_words(sizes: dict[str, int], words: str) -> None:
    answer = answer_for(ContextLengthExceeded("too long", param="messages", **sizes))
    assert json.loads(error_body(answer, "/v1/messages"))["error"]["message"] == words
    assert json.loads(error_body(answer, "/v1/chat/completions"))["error"]["message"] == "too long"


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messagesx", "/v1/responses", "/"])
def test_errors_elsewhere_have_openais_shape(path: str) -> None:
    answer = answer_for(InvalidRequest("`n` is wrong", param="n"))
    assert json.loads(error_body(answer, path, "mine")) == {
        "error": {
            "message": "`n` is wrong",
            "type": "invalid_request_error",
            "param": "n",
            "code": "invalid_request",
        }
    }


def test_a_leaders_error_names_the_callers_field() -> None:
    error = InvalidRequest(
        "`structured`: `not` cannot be enforced", param="structured.definition", keyword="not"
    )
    reported = renamed(error, {"structured": "response_format"})
    assert isinstance(reported, InvalidRequest)
    assert reported.message == "`response_format`: `not` cannot be enforced"
    assert reported.data == {"param": "response_format.definition", "keyword": "not"}
    stop = InvalidRequest("`stop` has 5 texts, `stop_token_ids` none", param="stop")
    assert renamed(stop, {"stop": "stop_sequences"}).message == (
        "`stop_sequences` has 5 texts, `stop_token_ids` none"
    )
    other: RyzError = InvalidRequest("`n` is wrong", param="n")
    assert renamed(other, {"structured": "response_format"}) is other
