"""A stack whose answers a script writes: gateway, router and leader are real, a false server is the model.

Agents send prompts of 10,000 tokens and more, and expect calls of tools that small models do not make. The
models differ in their contexts only. The API needs `KEY`.
"""

import asyncio
import json
import re
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from services.worker.text.tokenizer import Tokenizer, read_tokenizer
from tests.kits.agents.hermes_template import TEMPLATE
from tests.kits.e2e.stack import ROOT, Stack
from tests.kits.guests.false_server.scripts import Voice
from tests.kits.guests.false_server.server import FalseServer
from tests.kits.waiting import PATIENCE_S

KEY = "sk-of-the-agents"
CONTEXTS = {"long": 131_072, "short": 40_960, "tiny": 8_192}  # tokens, by the model's name
HELLO = "Hello from the scripted model."
WRITTEN = "The file is written."
_END_ID = 1
_FILE = re.compile(r"Write Quokka into (\S+) now")
_SEARCHED = re.compile(r"The tool (\w+) can be called now")


def _call(name: str, **arguments: object) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def reply_to(prompt: str) -> str | None:
    """Returns the whole answer to a prompt; None if it is none of a conversation."""
    if "<|assistant|>" not in prompt:
        return None
    file = _FILE.search(prompt)
    has_result = "<tool_response>" in prompt
    if file is None and "Search for WebFetch" not in prompt:
        return HELLO
    if file is None:
        found = _SEARCHED.search(prompt)
        return f"Found {found.group(1) if found else 'nothing'}." if has_result else _search()
    if has_result:
        return WRITTEN
    if '"exec_command"' in prompt:
        return _call("exec_command", cmd=f"echo Quokka > {file.group(1)}")
    return _call("Write", file_path=file.group(1), content="Quokka\n")


def _search() -> str:
    return _call("ToolSearch", query="select:WebFetch", max_results=5)


@dataclass(slots=True)
class ScriptedStack:
    """Where it answers, and the prompts of conversations that its models got."""

    url: str = ""
    prompts: list[str] = field(default_factory=list)

    def reply(self, prompt: str) -> str | None:
        """As `reply_to`."""
        answer = reply_to(prompt)
        if answer is not None:
            self.prompts.append(prompt)
        return answer


@contextmanager
def scripted_stack(folder: Path) -> Iterator[ScriptedStack]:
    """Runs the stack while the context is open."""
    scripted, model = ScriptedStack(), _agent_model(folder / "model")
    with _servers(scripted, read_tokenizer(model / "tokenizer.json")) as ports:
        lines = [
            f'[[models]]\nsource = "{model}"\nname = "{name}"\nremote = "http://127.0.0.1:{port}"\n'
            'remote_model = "demo"\n'
            for name, port in ports.items()
        ]
        (folder / "models.toml").write_text("\n".join(lines))
        env = {"RYZ_API_KEYS": f"{KEY}:agents"}
        with Stack(folder, "--models", str(folder / "models.toml"), env=env) as stack:
            scripted.url = stack.await_ready().state.url
            yield scripted
            assert stack.end() == 0


def _agent_model(folder: Path) -> Path:
    """The demo model's tokenizer with a long context, and a template that shows tools."""
    shutil.copytree(ROOT / "models" / "demo", folder)
    changes = {
        "config.json": {"max_position_embeddings": CONTEXTS["long"]},
        "tokenizer_config.json": {"chat_template": TEMPLATE, "model_max_length": CONTEXTS["long"]},
    }
    for name, fields in changes.items():
        file = folder / name
        file.write_text(json.dumps(json.loads(file.read_text()) | fields))
    return folder


@contextmanager
def _servers(scripted: ScriptedStack, tokenizer: Tokenizer) -> Iterator[dict[str, int]]:
    """A false server for each model, in a thread of their own; yields their ports by the models' names."""
    loop = asyncio.new_event_loop()
    servers = {
        name: FalseServer(
            Voice(
                style="vllm",
                tokenizer=tokenizer,
                answer=tokenizer.encode("x", add_special_tokens=False),
                end_id=_END_ID,
                model="demo",
                reply=scripted.reply,
                context_length=context,
                kv_blocks=context // 16,
            )
        )
        for name, context in CONTEXTS.items()
    }
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    try:
        for server in servers.values():
            asyncio.run_coroutine_threadsafe(server.start(), loop).result(PATIENCE_S)
        yield {name: server.port for name, server in servers.items()}
    finally:
        for server in servers.values():
            asyncio.run_coroutine_threadsafe(server.stop(), loop).result(PATIENCE_S)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(PATIENCE_S)
        loop.close()
