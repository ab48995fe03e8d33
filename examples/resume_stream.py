"""Reads a streamed answer to its end, over as many connections and gateways as that takes.

    python examples/resume_stream.py http://127.0.0.1:8000 http://127.0.0.1:8001

Needs httpx only. A connection may break anywhere: an event counts when it has come whole, and the stream goes
on after the last one that did. It gives up when nothing came for as long as the stream is kept.
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


class BrokenOff(Exception):
    """The answer has ended before it was complete; the text says why."""


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
    give_up, last_error = time.monotonic() + GRACE_S, ""
    for url in itertools.cycle(gateways):
        if time.monotonic() > give_up:
            raise BrokenOff(f"unavailable: no gateway brought anything for {GRACE_S} s ({last_error})")
        method, path, body = "POST", "/v1/chat/completions", BODY
        if stream_id:
            method, path, body = "GET", f"/v1/streams/{stream_id}", {}
            headers["Last-Event-ID"] = last_id
        try:
            with httpx.stream(method, url + path, json=body or None, headers=headers, timeout=60) as answer:
                if answer.status_code in {502, 503, 504}:  # the gateway starts or stops; another may answer
                    last_error = f"{url}: status {answer.status_code}"
                    time.sleep(0.2)
                    continue
                if answer.is_error:
                    error = json.loads(answer.read())["error"]
                    raise BrokenOff(f"{error['code']}: {error['message']}")
                stream_id = answer.headers["X-Stream-Id"]
                for event_id, data in events(answer):
                    if data == "[DONE]":
                        return
                    chunk = json.loads(data)
                    if "error" in chunk:
                        raise BrokenOff(f"{chunk['error']['code']}: {chunk['error']['message']}")
                    last_id, give_up = event_id, time.monotonic() + GRACE_S
                    yield "".join(choice["delta"].get("content") or "" for choice in chunk["choices"])
        except httpx.TransportError as error:
            last_error = f"{url}: {error}"
            time.sleep(0.2)


if __name__ == "__main__":
    urls = sys.argv[1:]
    if not urls or not all(url.startswith(("http://", "https://")) for url in urls):
        raise SystemExit(
            "usage: resume_stream.py GATEWAY_URL [GATEWAY_URL ...], such as http://127.0.0.1:8000"
        )
    try:
        for text in read(urls, os.environ.get("RYZ_API_KEY", "")):
            print(text, end="", flush=True)
        print()
    except BrokenOff as error:
        sys.exit(f"\n{error}")
    except KeyboardInterrupt:
        sys.exit(130)
