"""Has a gateway run a batch of chats."""

import json
from collections.abc import Mapping
from typing import Any

import httpx

from tests.kits.waiting import wait_for

CHATS = "/v1/chat/completions"


def run_chats(http: httpx.Client, models: Mapping[str, str]) -> dict[str, Any]:
    """Returns the batch when it is completed.

    Args:
        models: The model of each chat, by the chat's name in the batch.
    """
    hello = {"max_tokens": 4, "messages": [{"role": "user", "content": "Hi"}]}
    lines = [
        {"custom_id": name, "method": "POST", "url": CHATS, "body": {"model": model, **hello}}
        for name, model in models.items()
    ]
    content = "\n".join(map(json.dumps, lines)).encode()
    file = http.post("/v1/files", files={"file": ("in.jsonl", content)}, data={"purpose": "batch"}).json()
    asked = {"input_file_id": file["id"], "endpoint": CHATS, "completion_window": "1h"}
    batch: dict[str, Any] = http.post("/v1/batches", json=asked).json()

    def is_done() -> bool:
        batch.update(http.get(f"/v1/batches/{batch['id']}").json())
        return bool(batch["status"] == "completed")

    wait_for(is_done, "the batch is completed")
    return batch
