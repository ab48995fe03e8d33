"""Reads a streamed answer to its end, over as many connections and gateways as that takes.

    python examples/resume_stream.py http://127.0.0.1:8000 http://127.0.0.1:8001

Needs httpx only. A connection may break anywhere: an event counts when it has come whole, and the stream goes
on after the last one that did.
"""

import itertools
import json
import os
import sys
import time
from collections.abc import Iterator

import httpx

GRACE_S = 30
BODY = {
    "model": os.environ.get("RYZ_MODEL_NAME") or "smollm2-135m",
    "messages": [{"role": "user", "content": "Tell me about Python."}],
    "max_tokens": 200,
    "stream": True,
}


def events(answer: httpx.Response) -> Iterator[tuple[str, str]]:
    """Id and data of each whole event."""
    fields: dict[str, str] = {}
    for line in answer.iter_lines():
        name, _, value = line.partition(":")
        if line:
            fields[name] = value.strip()
        elif "data" in fields:
            yield fields.get("id", ""), fields["data"]
            fields = {}


def read(gateways: list[str], key: str = "") -> Iterator[str]:
    """The pieces of the answer's text."""
    headers = {"X-Stream-Grace": str(GRACE_S)} | ({"Authorization": f"Bearer {key}"} if key else {})
    stream_id = last_id = ""
    for url in itertools.cycle(gateways):
        method, path, body = "POST", "/v1/chat/completions", BODY
        if stream_id:
            method, path, body = "GET", f"/v1/streams/{stream_id}", {}
            headers["Last-Event-ID"] = last_id
        try:
            with httpx.stream(method, url + path, json=body or None, headers=headers, timeout=60) as answer:
                if answer.status_code in {502, 503, 504}:  # the gateway starts or stops; another may answer
                    time.sleep(0.2)
                    continue
                answer.raise_for_status()
                stream_id = answer.headers["X-Stream-Id"]
                for event_id, data in events(answer):
                    if data == "[DONE]":
                        return
                    chunk = json.loads(data)
                    if "error" in chunk:
                        raise RuntimeError(chunk["error"]["message"])
                    last_id = event_id
                    yield "".join(choice["delta"].get("content") or "" for choice in chunk["choices"])
        except httpx.TransportError as error:
            print(f"{url}: {error}", file=sys.stderr)
            time.sleep(0.2)


if __name__ == "__main__":
    urls = sys.argv[1:]
    if not urls or not all(url.startswith(("http://", "https://")) for url in urls):
        raise SystemExit(
            "usage: resume_stream.py GATEWAY_URL [GATEWAY_URL ...], such as http://127.0.0.1:8000"
        )
    for text in read(urls, os.environ.get("RYZ_API_KEY", "")):
        print(text, end="", flush=True)
    print()
