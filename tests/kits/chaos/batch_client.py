"""A caller of files and batches that comes back whatever dies, and counts what came out."""

import json
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import httpx

STEP_S = 0.1


class BatchCaller:
    """Calls a gateway that may be killed at any time.

    Args:
        url: Returns where it is: a stack that was started again has another port.
        patience_s: How long a call is tried again.
    """

    def __init__(self, url: Callable[[], str], patience_s: float = 60.0) -> None:
        self._url = url
        self._patience_s = patience_s

    def call(self, method: str, path: str, **options: Any) -> httpx.Response:
        """The answer of a gateway that is well."""
        give_up = time.monotonic() + self._patience_s
        while True:
            text = ""
            try:
                answer = httpx.request(method, f"{self._url()}/v1{path}", timeout=20, **options)
                if answer.status_code == 200:
                    return answer
                text = answer.text
                assert answer.status_code >= 500 or answer.status_code == 429, text
            except (httpx.TransportError, OSError) as error:
                text = repr(error)
            assert time.monotonic() < give_up, text
            time.sleep(STEP_S)

    def submit(self, lines: bytes) -> str:
        """Makes a batch of these lines and returns its id."""
        file = self.call(
            "POST", "/files", files={"file": ("in.jsonl", lines)}, data={"purpose": "batch"}
        ).json()
        body = {
            "input_file_id": file["id"],
            "endpoint": "/v1/chat/completions",
            "completion_window": "24h",
        }
        made: dict[str, Any] = self.call("POST", "/batches", json=body).json()
        return str(made["id"])

    def batch(self, batch_id: str) -> dict[str, Any]:
        """The batch as it is now."""
        found: dict[str, Any] = self.call("GET", f"/batches/{batch_id}").json()
        return found

    def done(self, batch_id: str) -> int:
        """The requests of a batch that have a result."""
        counts = self.batch(batch_id)["request_counts"]
        return int(counts["completed"] + counts["failed"])

    def await_done(self, batch_id: str, count: int, timeout_s: float) -> None:
        """Waits until so many requests have a result, or the batch has ended."""
        give_up = time.monotonic() + timeout_s
        while (batch := self.batch(batch_id))["status"] in {"validating", "in_progress"}:
            if batch["request_counts"]["completed"] + batch["request_counts"]["failed"] >= count:
                return
            assert time.monotonic() < give_up, batch
            time.sleep(STEP_S)

    def await_end(self, batch_id: str, timeout_s: float) -> dict[str, Any]:
        """The batch when it is complete."""
        give_up = time.monotonic() + timeout_s
        while (batch := self.batch(batch_id))["status"] != "completed":
            assert batch["status"] in {"validating", "in_progress", "finalizing"}, batch
            assert time.monotonic() < give_up, batch
            time.sleep(STEP_S)
        return batch

    def lines(self, file_id: str | None) -> list[dict[str, Any]]:
        """The lines of an output or error file."""
        if not file_id:
            return []
        text = self.call("GET", f"/files/{file_id}/content").text
        return [json.loads(line) for line in text.splitlines()]

    def check_whole(self, batch_id: str, count: int, timeout_s: float) -> None:
        """Waits for the end, and fails unless `line-0` to `line-<count - 1>` have a result each, once."""
        batch = self.await_end(batch_id, timeout_s)
        errors = self.lines(batch["error_file_id"])
        assert not errors, errors[:3]
        found = Counter(line["custom_id"] for line in self.lines(batch["output_file_id"]))
        assert found == Counter(f"line-{number}" for number in range(count)), {
            "missing": [f"line-{n}" for n in range(count) if f"line-{n}" not in found][:10],
            "twice": [name for name, times in found.items() if times > 1][:10],
        }
        assert batch["request_counts"] == {"total": count, "completed": count, "failed": 0}
