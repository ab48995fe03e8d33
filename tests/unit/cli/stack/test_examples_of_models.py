"""What the start shows to try: a chat, or a completion for a model that does not chat."""

import json
import shlex
from pathlib import Path

from cli.stack.fleet.check import checked_models
from cli.stack.fleet.declare import declare
from cli.stack.options import UpOptions
from cli.stack.supervision.announcement import example_line


def drop_template(model: Path) -> None:
    file = model / "tokenizer_config.json"
    config = json.loads(file.read_text())
    del config["chat_template"]
    file.write_text(json.dumps(config))


def test_a_base_model_is_asked_for_a_completion(demo_copy: Path, tmp_path: Path) -> None:
    drop_template(demo_copy)
    file = tmp_path / "models.toml"
    file.write_text(f"[[models]]\nname = 'base'\nsource = '{demo_copy}'\n[[models]]\nsource = 'demo'\n")
    options = UpOptions(models=file, kernels="plain")
    base, demo = checked_models(options, declare(options, {}), pull=False)
    assert (base.chats, demo.chats) == (False, True)
    for model, path, field in ((base, "completions", "prompt"), (demo, "chat/completions", "messages")):
        command = shlex.split(example_line("http://127.0.0.1:8000", model))
        assert command[2] == f"http://127.0.0.1:8000/v1/{path}"
        body = json.loads(command[-1])
        assert (body["model"], body["stream"]) == (model.name, True)
        assert field in body
