"""Validated bodies of the completion routes, for tests of their translation."""

from typing import Any

import pytest
from pydantic import ValidationError

from services.gateway.admission.refusals import invalid_body
from services.gateway.completions.completion_schema import ChatCompletionRequest, CompletionRequest
from services.gateway.completions.request_translation import (
    Origin,
)
from shared.errors import InvalidRequest
from shared.messages import SessionRef

HELLO = [{"role": "user", "content": "Hello"}]


def chat(**fields: Any) -> ChatCompletionRequest:
    return ChatCompletionRequest.model_validate({"model": "demo", "messages": HELLO} | fields)


def completion(**fields: Any) -> CompletionRequest:
    return CompletionRequest.model_validate({"model": "demo", "prompt": "Once"} | fields)


def origin(session: SessionRef | None = None) -> Origin:
    return Origin(request_id="r1", tenant="acme", seed=77, session=session)


def refused(make: Any, /, **fields: Any) -> InvalidRequest:
    with pytest.raises(ValidationError) as caught:
        make(**fields)
    return invalid_body(caught.value)
