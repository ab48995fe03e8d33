"""Chats for short trainings, and plans for them with the demo model."""

import json
from pathlib import Path
from typing import Any

from cli.stack.model_dir import demo_model
from training.finetune.plan import FinetunePlan

NAMES = ("Ada", "Bob", "Cleo", "Dan", "Eve", "Finn", "Gus", "Hal", "Ida", "Jo", "Kim", "Lea")


def write_chats(path: Path, count: int = 24) -> Path:
    """Writes short chats of two lengths."""
    lines = []
    for index in range(count):
        name = NAMES[index % len(NAMES)]
        turns = [("user", f"My name is {name}."), ("assistant", f"Good morning, {name}, and welcome!")]
        if index % 2:
            turns += [("user", "What is my name?"), ("assistant", f"You are {name}, as you said.")]
        lines.append(json.dumps({"messages": [{"role": role, "content": text} for role, text in turns]}))
    path.write_text("\n".join(lines))
    return path


def demo_plan(directory: Path, **changed: Any) -> FinetunePlan:
    """A short training of the demo model on 24 chats; changes are fields of the plan."""
    data = directory / "chats.jsonl"
    if not data.exists():
        write_chats(data)
    options: dict[str, Any] = {
        "base": demo_model(), "base_name": "demo", "data": data, "output": directory / "adapter",
        "base_bits": 32, "rank": 4, "alpha": 8.0, "length": 128, "epochs": 3, "learning_rate": 5e-3,
        "held_out": 0.2, "checkpoint_s": 1e9,
    }  # fmt: skip
    return FinetunePlan(**options | changed)
