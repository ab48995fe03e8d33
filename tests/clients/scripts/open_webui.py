"""Open WebUI: its server, set up as in the recipe: models, chats whole and streamed, titles."""

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path

from cases import API, MODEL, QUESTION, run_cases

START_S = 300.0  # its first start makes a database, and imports torch


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


class OpenWebUI:
    """Its server, in a folder of its own; what it would fetch from a hub at its start stays away."""

    def __init__(self, folder):
        self.url = f"http://127.0.0.1:{(port := free_port())}"
        self.log = Path(folder) / "server.log"
        settings = {
            "OPENAI_API_BASE_URL": API,
            "OPENAI_API_KEY": "none",
            "ENABLE_OLLAMA_API": "false",
            "DATA_DIR": folder,
            "OFFLINE_MODE": "true",
            "HF_HUB_OFFLINE": "1",
            "WEBUI_SECRET_KEY": "of-this-test",
        }
        program = Path(sys.executable).with_name("open-webui")
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [program, "serve", "--host", "127.0.0.1", "--port", str(port)],
                env={**os.environ, **settings},
                cwd=folder,
                stdout=log,
                stderr=log,
            )
        self.token = ""

    def sign_up(self):
        """Returns when the server is there and knows its first user."""
        ends = time.monotonic() + START_S
        person = {"name": "Ada", "email": "ada@example.org", "password": "a-Long-password-1"}
        while not self.token:
            assert self.process.poll() is None, self.log.read_text()[-4000:]
            assert time.monotonic() < ends, self.log.read_text()[-4000:]
            try:
                self.token = self.ask("/api/v1/auths/signup", person)["token"]
            except (urllib.error.URLError, ConnectionError):
                time.sleep(1.0)

    def ask(self, path, body=None):
        with self.open(path, body) as answer:
            return json.load(answer)

    def open(self, path, body=None):
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {self.token}"}
        data = None if body is None else json.dumps(body).encode()
        return urllib.request.urlopen(urllib.request.Request(self.url + path, data, headers), timeout=300)

    def close(self):
        self.process.terminate()
        self.process.wait(60)


def chat(**fields):
    return {"model": MODEL, "messages": [{"role": "user", "content": QUESTION}], **fields}


def models():
    assert [one["id"] for one in server.ask("/api/models")["data"] if one["id"] == MODEL]


def verifies():
    found = server.ask("/openai/verify", {"url": API, "key": "none"})
    assert MODEL in [one["id"] for one in found["data"]]


def answers():
    found = server.ask("/api/chat/completions", chat(stream=False, max_tokens=40, temperature=0))
    assert found["choices"][0]["message"]["content"].strip()


def streams():
    with server.open("/api/chat/completions", chat(stream=True, max_tokens=40, temperature=0)) as answer:
        lines = [
            line.decode().strip().removeprefix("data: ") for line in answer if line.startswith(b"data: ")
        ]
    assert lines.pop() == "[DONE]"
    choices = [choice for line in lines for choice in json.loads(line).get("choices", ())]
    assert "".join(choice["delta"].get("content") or "" for choice in choices).strip()


def titles():
    found = server.ask("/api/v1/tasks/title/completions", chat(chat_id="a-chat"))
    assert found["choices"][0]["message"]["content"].strip()


with tempfile.TemporaryDirectory() as data:
    server = OpenWebUI(data)
    try:
        server.sign_up()
        run_cases(models, verifies, answers, streams, titles)
    finally:
        server.close()
