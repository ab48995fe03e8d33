"""OpenAI's SDK on the Responses API: create, stream, parse, tools, chains, background."""

import time
from typing import Any

import pytest
from openai import NotFoundError, OpenAI

from tests.kits.clients.openai_tests import OpenAITests
from tests.kits.clients.openai_tools import Verdict
from tests.kits.clients.served import Served
from tests.kits.waiting import PATIENCE_S


class OpenAIResponsesTests(OpenAITests):
    """`responses` of OpenAI's SDK."""

    def test_a_streamed_response_is_the_whole_one(self, openai: OpenAI, served: Served) -> None:
        kept: Any = {
            "model": served.model, "input": "Hello, my name is Ada.", "instructions": "Be brief.",
            "max_output_tokens": 200, "temperature": 0,
        }  # fmt: skip
        whole = openai.responses.create(**kept)
        with openai.responses.stream(**kept) as stream:
            pieces = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
            final = stream.get_final_response()
        assert pieces == final.output_text == whole.output_text != ""
        assert whole.usage is not None
        assert whole.usage.output_tokens > 0

    def test_parse_returns_an_object_of_the_class(self, openai: OpenAI, served: Served) -> None:
        answer = openai.responses.parse(
            model=served.model, input="I am Ada.", text_format=Verdict, max_output_tokens=120, temperature=1
        )
        assert isinstance(answer.output_parsed, Verdict)

    def test_a_stored_response_can_be_read_and_deleted(self, openai: OpenAI, served: Served) -> None:
        made = openai.responses.create(model=served.model, input="Hello, I am Bo.", max_output_tokens=16)
        read = openai.responses.retrieve(made.id)
        assert (read.id, read.output_text) == (made.id, made.output_text)
        assert openai.responses.input_items.list(made.id).data
        openai.responses.delete(made.id)
        with pytest.raises(NotFoundError):
            openai.responses.retrieve(made.id)

    def test_a_background_response_ends_by_itself(self, openai: OpenAI, served: Served) -> None:
        made = openai.responses.create(
            model=served.model, input="Hello.", background=True, max_output_tokens=16
        )
        assert made.status in {"queued", "in_progress"}
        give_up = time.monotonic() + PATIENCE_S
        while (read := openai.responses.retrieve(made.id)).status in {"queued", "in_progress"}:
            assert time.monotonic() < give_up, read
            time.sleep(0.1)
        assert read.status in {"completed", "incomplete"}
        assert read.output_text
