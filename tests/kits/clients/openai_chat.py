"""OpenAI's SDK on chat completions, text completions, models and embeddings."""

import base64
import struct
from typing import Any

import pytest
from openai import BadRequestError, OpenAI
from openai.types.chat import ChatCompletionMessageParam

from tests.kits.clients.openai_tests import OpenAITests
from tests.kits.clients.served import Served

HELLO: list[ChatCompletionMessageParam] = [{"role": "user", "content": "Hello, my name is Ada."}]


class OpenAIChatTests(OpenAITests):
    """`chat.completions`, `completions`, `models` and `embeddings` of OpenAI's SDK."""

    def test_create_and_stream_are_the_same_answer(self, openai: OpenAI, served: Served) -> None:
        kept: Any = {
            "model": served.model,
            "messages": HELLO,
            "max_tokens": 12,
            "temperature": 1,
            "seed": 5,
            "n": 2,
        }
        whole = openai.chat.completions.create(**kept)
        texts = ["", ""]
        with openai.chat.completions.create(**kept, stream=True) as chunks:
            for chunk in chunks:
                for choice in chunk.choices:
                    texts[choice.index] += choice.delta.content or ""
        assert texts == [choice.message.content for choice in whole.choices]
        assert all(texts)
        assert whole.usage is not None
        assert whole.usage.completion_tokens > 2

    def test_logprobs_and_the_stream_helper(self, openai: OpenAI, served: Served) -> None:
        with openai.chat.completions.stream(
            model=served.model, messages=HELLO, max_tokens=200, temperature=0, logprobs=True, top_logprobs=2
        ) as stream:
            kinds = {event.type for event in stream}
            final = stream.get_final_completion()
        assert {"chunk", "content.delta", "content.done"} <= kinds
        logprobs = final.choices[0].logprobs
        assert logprobs is not None
        assert logprobs.content is not None
        assert "".join(one.token for one in logprobs.content).startswith(
            (final.choices[0].message.content or "")[:3]
        )

    def test_no_images(self, openai: OpenAI, served: Served) -> None:
        image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,aGk="}}
        messages: Any = [{"role": "user", "content": [{"type": "text", "text": "What is this?"}, image]}]
        with pytest.raises(BadRequestError, match="image"):
            openai.chat.completions.create(model=served.model, messages=messages)

    def test_the_model_is_known_by_its_name(self, openai: OpenAI, served: Served) -> None:
        assert openai.models.retrieve(served.model).id == served.model
        assert [model.id for model in openai.models.list()] == [served.model]

    def test_a_text_completion_with_echo(self, openai: OpenAI, served: Served) -> None:
        answer = openai.completions.create(
            model=served.model, prompt="Ada likes", max_tokens=4, temperature=0, echo=True, logprobs=1
        )
        assert answer.choices[0].text.startswith("Ada likes")
        assert answer.choices[0].logprobs is not None
        assert answer.choices[0].logprobs.token_logprobs is not None
        assert answer.choices[0].logprobs.token_logprobs[0] is None

    def test_embeddings_as_floats_and_as_base64(self, openai: OpenAI, served: Served) -> None:
        texts = ["A cat sat.", "A dog ran."]
        decoded = openai.embeddings.create(model=served.model, input=texts)
        floats = openai.embeddings.create(model=served.model, input=texts, encoding_format="float")
        packed: Any = openai.embeddings.create(model=served.model, input=texts, encoding_format="base64")
        for one, other, raw in zip(decoded.data, floats.data, packed.data, strict=True):
            assert one.embedding == pytest.approx(other.embedding, abs=1e-6)
            assert sum(part * part for part in one.embedding) == pytest.approx(1, abs=1e-3)
            data = base64.b64decode(raw.embedding)
            assert list(struct.unpack(f"<{len(data) // 4}f", data)) == one.embedding
        assert decoded.data[0].embedding != decoded.data[1].embedding
        short = openai.embeddings.create(model=served.model, input="A cat sat.", dimensions=8)
        assert len(short.data[0].embedding) == 8
