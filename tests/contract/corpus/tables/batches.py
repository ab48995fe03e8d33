"""Files and batches."""

import json
from typing import Any

from tests.contract.corpus.exchange import Heard, Later, table
from tests.contract.corpus.senders.http import Http
from tests.contract.corpus.tables.bodies import CHAT, EMBEDDINGS, JSON, RESPONSES, TEXT, chat, response, text

FILES, BATCHES = "/v1/files", "/v1/batches"
_BOUNDARY = "a-boundary"
_FORM = {"Content-Type": f"multipart/form-data; boundary={_BOUNDARY}"}


def form(content: bytes, **fields: str) -> bytes:
    """A form with a file."""
    parts = [
        f'Content-Disposition: form-data; name="{name}"\r\n\r\n{value}' for name, value in fields.items()
    ]
    head = f"--{_BOUNDARY}\r\n"
    text_parts = "".join(f"{head}{part}\r\n" for part in parts)
    last = 'Content-Disposition: form-data; name="file"; filename="in.jsonl"\r\n\r\n'
    return f"{text_parts}{head}{last}".encode() + content + f"\r\n--{_BOUNDARY}--\r\n".encode()


def upload(content: bytes, **fields: str) -> Http:
    """Stores a file."""
    return Http(FILES, form(content, **({"purpose": "batch"} | fields)), headers=_FORM)


def lines(url: str, *bodies: JSON) -> bytes:
    """The input of a batch."""
    made = [
        {"custom_id": f"line-{number}", "method": "POST", "url": url, "body": body}
        for number, body in enumerate(bodies)
    ]
    return "".join(json.dumps(line) + "\n" for line in made).encode()


def of(path: str, step: int = 0, **options: Any) -> Later:
    """A request about what a step made."""
    return lambda heard: Http(path.replace("{id}", heard[step].json["id"]), **options)


def batch(url: str, **fields: Any) -> Later:
    """A batch of the file that the first step stored."""
    return lambda heard: Http(
        BATCHES, {"input_file_id": heard[0].json["id"], "endpoint": url, "completion_window": "24h"} | fields
    )


def _ended(heard: Heard) -> bool:
    return heard.json["status"] in ("completed", "failed", "expired", "cancelled")


def file_of(field: str, step: int) -> Later:
    """The content of a file that a batch has written."""
    return lambda heard: Http(f"{FILES}/{heard[step].json[field]}/content")


_RUNS = of(f"{BATCHES}/{{id}}", 1, until=lambda heard: heard.json["status"] == "in_progress")
_AWAIT = of(f"{BATCHES}/{{id}}", 1, until=_ended)


def run(url: str, *bodies: JSON, field: str = "output_file_id") -> list[Any]:
    """A batch from its file to one of its results; of one line each, since lines end in any order."""
    return [upload(lines(url, *bodies)), batch(url), _AWAIT, file_of(field, 2)]


TABLE = table(
    "batches",
    {
        # first, while there is one: the order of files of the same second is that of their random ids
        "pages of files": [
            upload(b"x\n"),
            Http(f"{FILES}?limit=1&order=asc"),
            Http(f"{FILES}?purpose=batch_output"),
            Http(f"{FILES}?limit=0"),
        ],
        "a file": [
            upload(b"hello\n"),
            of(f"{FILES}/{{id}}"),
            of(f"{FILES}/{{id}}/content"),
            of(f"{FILES}/{{id}}", method="DELETE"),
            of(f"{FILES}/{{id}}"),
        ],
        "a file that expires": upload(
            b"x\n", **{"expires_after[anchor]": "created_at", "expires_after[seconds]": "3600"}
        ),
        "a file with a wrong purpose": upload(b"x\n", purpose="party"),
        "a file with a wrong expiry": upload(b"x\n", **{"expires_after[seconds]": "1"}),
        "no form": Http(FILES, b"x"),
        "a form that is cut": Http(FILES, form(b"hello")[:-9], headers=_FORM),
        "a form without a file": Http(
            FILES,
            form(b"x").replace(b'name="file"', b'name="other"'),
            headers=_FORM,
        ),
        "no such file": Http(f"{FILES}/file-none"),
        "the content of none": Http(f"{FILES}/file-none/content"),
        "a file of another tenant": [upload(b"x\n"), of(f"{FILES}/{{id}}", key="key-of-chat")],
        "a batch of chats": run(CHAT, chat()),
        "a batch of texts": run(TEXT, text()),
        "a batch of embeddings": run(EMBEDDINGS, {"model": "demo", "input": "Hello", "dimensions": 3}),
        "a batch of responses": run(RESPONSES, response()),
        "a batch of calls": run(CHAT, chat(model="calls")),
        "a batch with a field left out": run(CHAT, chat(frobnicate=1)),
        "a refused line": run(CHAT, chat(temperature="hot"), field="error_file_id"),
        "a line of an unknown model": run(CHAT, chat(model="nobody"), field="error_file_id"),
        "a line that streams": run(CHAT, chat(stream=True), field="error_file_id"),
        "a file that is no batch": [upload(b"hello\n"), batch(CHAT), _AWAIT],
        "a line for another route": [upload(lines(TEXT, text())), batch(CHAT), _AWAIT],
        "an empty file": [upload(b""), batch(CHAT), _AWAIT],
        "the same line twice": [upload(lines(CHAT, chat()) * 2), batch(CHAT), _AWAIT],
        "a batch that is cancelled": [
            upload(lines(CHAT, chat(model="stuck"))),
            batch(CHAT),
            _RUNS,
            of(f"{BATCHES}/{{id}}/cancel", 1, method="POST"),
            _AWAIT,
            of(f"{BATCHES}/{{id}}/cancel", 1, method="POST"),
        ],
        "a batch that is paused": [
            upload(lines(CHAT, chat(model="stuck"))),
            batch(CHAT),
            _RUNS,
            of(f"{BATCHES}/{{id}}/pause", 1, method="POST"),
            of(f"{BATCHES}/{{id}}/resume", 1, method="POST"),
            of(f"{BATCHES}/{{id}}/cancel", 1, method="POST"),
            _AWAIT,
        ],
        "what changes nothing": [upload(lines(CHAT, chat())), batch(CHAT, metadata={"a": "b"}, frobnicate=1)],
        "a window that is none": [upload(b"x"), batch(CHAT, completion_window="soon")],
        "an unknown route": [upload(b"x"), batch("/v1/sessions")],
        "a file that is not there": Http(
            BATCHES, {"input_file_id": "file-none", "endpoint": CHAT, "completion_window": "24h"}
        ),
        "a body of a wrong type": Http(BATCHES, {"input_file_id": 7}),
        "no such batch": Http(f"{BATCHES}/batch_none"),
        "a cancel of none": Http(f"{BATCHES}/batch_none/cancel", method="POST"),
        "a pause of none": Http(f"{BATCHES}/batch_none/pause", method="POST"),
        "a wrong page": Http(f"{BATCHES}?limit=0"),
    },
)
