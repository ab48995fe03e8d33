"""`/v1/files` and `/v1/batches` as `ryz batch` uses them.

A batch that the command made carries the digest of its file, so the file names it: no state is kept here, and
a command that was interrupted can be given again.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import quote

import httpx

from cli.console import fail
from cli.http_api import HttpApi

ENDED = frozenset({"completed", "failed", "expired", "cancelled"})
DIGEST, NAME = "ryz_sha256", "ryz_file"
PART = 1 << 20


class BatchApi(HttpApi):
    """Batches of one gateway. Methods raise `CommandError` like `HttpApi`."""

    exit_codes: ClassVar[Mapping[int, int]] = {404: 3}

    def submit(self, path: Path, window: str) -> dict[str, Any]:
        """Upload a file and make a batch of it."""
        endpoint, digest = first_url(path), digest_of(path)
        with path.open("rb") as file:
            form = {"file": (path.name, file, "application/jsonl")}
            stored = self._object("POST", "/v1/files", data={"purpose": "batch"}, files=form)
        wanted = {
            "input_file_id": stored["id"],
            "endpoint": endpoint,
            "completion_window": window,
            "metadata": {DIGEST: digest, NAME: path.name[:512]},
        }
        return self._object("POST", "/v1/batches", json=wanted)

    def find(self, name: str) -> dict[str, Any]:
        """Return the batch with that id, or the newest one that was made of that file."""
        if name.startswith("batch_") and not Path(name).exists():
            return self._object("GET", _at(name))
        path = Path(name)
        if not path.is_file():
            fail(
                f"{name} is neither a file nor the id of a batch (batch_...); `ryz batch list` shows them.",
                3,
            )
        found = self.made_of(digest_of(path))
        return found or fail(f"No batch was made of {path}; `ryz batch submit {path}` makes one.", 3)

    def made_of(self, digest: str) -> dict[str, Any] | None:
        """Return the newest batch that was made of a file, if there is one."""
        mine = (one for one in self.all() if (one.get("metadata") or {}).get(DIGEST) == digest)
        return next(mine, None)

    def all(self) -> Iterator[dict[str, Any]]:
        """Yield all batches, newest first."""
        after: dict[str, str] = {}
        while True:
            page = self._object("GET", "/v1/batches", params={"limit": "100"} | after)
            yield from page["data"]
            if not page["has_more"]:
                return
            after = {"after": page["last_id"]}

    def change(self, batch_id: str, action: str) -> dict[str, Any]:
        """Cancel, pause or resume a batch."""
        return self._object("POST", _at(batch_id, f"/{action}"))

    def first_error(self, file_id: str) -> str:
        """Return the first error of a file of errors in one line, after the request's `custom_id`."""
        first = b""
        with self.content(file_id) as (_, parts):
            for part in parts:
                first += part
                if b"\n" in part:
                    break
        try:
            line = json.loads(first.partition(b"\n")[0])
            error = line["error"] or line["response"]["body"]["error"]
            return f"{line['custom_id']}: {' '.join(error['message'].split())}"
        except (ValueError, KeyError, TypeError, AttributeError):
            self.refuse_answer()

    @contextmanager
    def content(self, file_id: str) -> Iterator[tuple[int, Iterator[bytes]]]:
        """Give the size of a file, and its bytes as they come."""
        path = f"/v1/files/{quote(file_id, safe='')}/content"
        try:
            with self._http.stream("GET", path) as answer:
                if answer.is_error:
                    answer.read()
                self._check(answer)
                yield int(answer.headers.get("content-length", 0)), answer.iter_bytes(PART)
        except httpx.TransportError as error:
            self._unreachable(error)

    def _object(self, method: str, path: str, **options: Any) -> dict[str, Any]:
        try:
            found = self.ask(method, path, **options).json()
        except ValueError:
            self.refuse_answer()
        return found if isinstance(found, dict) else self.refuse_answer()


def readable(path: Path) -> Path:
    """Return the path of a file; fail if there is none."""
    if not path.is_file():
        fail(f"There is no file {path}.", 2)
    return path


def digest_of(path: Path) -> str:
    """Return the SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def first_url(path: Path) -> str:
    """Return the route that the first line of a file names; all others must name the same."""
    with readable(path).open("rb") as file, suppress(ValueError, KeyError, TypeError):
        first = next((raw for raw in file if raw.strip()), b"")
        return str(json.loads(first)["url"])
    return fail(
        f"{path} is no file of requests: its lines are JSON objects with custom_id, method, url and body "
        "(docs/batches.md).",
        2,
    )


def _at(batch_id: str, action: str = "") -> str:
    return f"/v1/batches/{quote(batch_id, safe='')}{action}"
