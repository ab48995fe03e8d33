"""Validated bodies of the completion routes, for tests of their translation."""

from typing import Any

import pytest
from pydantic import ValidationError

from services.gateway.admission.errors.refusals import invalid_body
from services.gateway.answering.left_out import LeftOut
from services.gateway.formats.chat.call import judge_chat
from services.gateway.formats.chat.schema import ChatCompletionRequest
from services.gateway.formats.fields.completion_call import judge_body
from services.gateway.formats.fields.sampling import Origin
from services.gateway.formats.text.schema import CompletionRequest
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


def judged(body: ChatCompletionRequest | CompletionRequest) -> tuple[list[str], list[LeftOut]]:
    """What the format of a body says of its unknown fields; see `judge_body`."""
    return judge_chat(body) if isinstance(body, ChatCompletionRequest) else judge_body(body)
