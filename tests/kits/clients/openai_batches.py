"""OpenAI's SDK on files and batches: upload, run, read the results; and chat equals the batch's answer."""

import json
import time
from typing import Any

import pytest
from openai import NotFoundError, OpenAI

from tests.kits.clients.openai_tests import OpenAITests
from tests.kits.clients.served import Served
from tests.kits.waiting import PATIENCE_S


class OpenAIBatchTests(OpenAITests):
    """`files` and `batches` of OpenAI's SDK."""

    def test_a_batch_gives_the_answers_of_chat(self, openai: OpenAI, served: Served) -> None:
        bodies: list[Any] = [
            {
                "model": served.model,
                "temperature": 0,
                "max_tokens": 8,
                "messages": [{"role": "user", "content": f"Count to {number}."}],
            }
            for number in range(1, 4)
        ]
        lines = [
            {"custom_id": f"c{index}", "method": "POST", "url": "/v1/chat/completions", "body": body}
            for index, body in enumerate(bodies)
        ]
        text = "\n".join(map(json.dumps, lines))
        file = openai.files.create(file=("in.jsonl", text.encode()), purpose="batch")
        batch = openai.batches.create(
            input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h"
        )
        give_up = time.monotonic() + PATIENCE_S
        while batch.status != "completed":
            assert time.monotonic() < give_up, batch
            time.sleep(0.1)
            batch = openai.batches.retrieve(batch.id)
        assert batch.output_file_id is not None
        found = [json.loads(line) for line in openai.files.content(batch.output_file_id).text.splitlines()]
        answers = {one["custom_id"]: one["response"]["body"]["choices"][0]["message"] for one in found}
        for index, body in enumerate(bodies):
            whole = openai.chat.completions.create(**body)
            assert answers[f"c{index}"]["content"] == whole.choices[0].message.content
        assert batch.id in {one.id for one in openai.batches.list()}

    def test_files_can_be_listed_read_and_deleted(self, openai: OpenAI) -> None:
        file = openai.files.create(file=("a.txt", b"some text"), purpose="user_data")
        assert file.id in {one.id for one in openai.files.list()}
        assert openai.files.content(file.id).content == b"some text"
        assert openai.files.delete(file.id).deleted
        with pytest.raises(NotFoundError):
            openai.files.retrieve(file.id)
