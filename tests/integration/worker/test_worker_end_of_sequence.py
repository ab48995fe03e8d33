"""Answers of real ranks end where only one of a directory's files, or its chat template, names the end."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from services.worker.model_files.load_model import load_model
from services.worker.orchestrator.rank_engine import RankEngine
from tests.kits.engine.rank_options import rank_options
from tests.kits.memory_bus import MemoryBus
from tests.kits.worker.leader import Kit, chat, finish_of, text_of

DEMO = Path(__file__).parents[3] / "models" / "demo"
NULL = {"eos_token_id": None}


@pytest.mark.parametrize(
    ("config", "generation", "tokenizer_config"),
    [
        ({}, NULL, {"eos_token": None}),
        (NULL, {}, {"eos_token": None}),
        (NULL, NULL, {}),
        (NULL, NULL, {"eos_token": None}),  # the template ends an answer with it
        ({"eos_token_id": 5}, NULL, {"eos_token": None}),
    ],
)
async def test_an_answer_ends(
    tmp_path: Path,
    memory_bus: MemoryBus,
    config: dict[str, Any],
    generation: dict[str, Any],
    tokenizer_config: dict[str, Any],
) -> None:
    path = Path(shutil.copytree(DEMO, tmp_path / "demo"))
    for name, fields in (
        ("config", config), ("generation_config", generation), ("tokenizer_config", tokenizer_config),
    ):  # fmt: skip
        content = json.loads((path / f"{name}.json").read_text())
        (path / f"{name}.json").write_text(json.dumps(content | fields))
    engine = RankEngine(rank_options(model=path, tensor_parallel=1, threads=1, kv_cache_tokens=1024))
    async with Kit(memory_bus, engine, model=load_model(path, "demo")) as kit:
        request = chat("r", "My name is Ada.", sampling={"max_tokens": 100, "temperature": 0.0})
        frames = await kit.run(request)
    assert finish_of(frames) == "stop"
    assert "Ada" in text_of(frames)
