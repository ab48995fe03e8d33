"""A very short training run exports a directory that loads; the same seed gives the same tokenizer."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer

from training import bpe
from training.batches import TrainingSample, stack
from training.dialogues import DialogueMessage
from training.evaluate import reply
from training.export import load_model
from training.model import TrainingModelConfig
from training.train import TrainPlan, TrainProgress, learning_rate, train_demo

_TINY = TrainingModelConfig(
    vocab_size=512,
    hidden_size=32,
    intermediate_size=64,
    num_layers=1,
    num_heads=4,
    num_kv_heads=4,
    head_dim=8,
)


@pytest.fixture(autouse=True)
def _restore_threads() -> Iterator[None]:
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def test_three_steps_export_a_directory_that_loads_back(tmp_path: Path) -> None:
    seen: list[TrainProgress] = []
    report = train_demo(tmp_path, TrainPlan(steps=3, seed=1, threads=1, config=_TINY), seen.append)
    assert [state.step for state in seen] == [1, 2, 3]
    assert report.parameters == 512 * 32 + 2 * 32 + 32 + 4 * 32 * 32 + 3 * 32 * 64
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["architectures"] == ["LlamaForCausalLM"]
    model, tokenizer = load_model(tmp_path)
    assert isinstance(reply(model, tokenizer, [DialogueMessage("user", "Hello.")], max_tokens=3), str)
    assert tokenizer.token_to_id(bpe.END) == config["eos_token_id"]


def test_the_seed_decides_the_tokenizer(tmp_path: Path) -> None:
    first, second = bpe.train_tokenizer(512, 7), bpe.train_tokenizer(512, 7)
    assert isinstance(first, Tokenizer)
    assert first.to_str() == second.to_str()


def test_the_second_phase_can_be_run_alone(tmp_path: Path) -> None:
    whole, halves = tmp_path / "whole", tmp_path / "halves"
    states: list[TrainProgress] = []
    train_demo(whole, TrainPlan(steps=4, seed=1, threads=1, config=_TINY))

    class StopError(Exception):
        pass

    def stop_in_the_second_phase(state: TrainProgress) -> None:
        if state.step == 4:
            raise StopError

    with pytest.raises(StopError):
        train_demo(halves, TrainPlan(steps=4, seed=1, threads=1, config=_TINY), stop_in_the_second_phase)
    train_demo(halves, TrainPlan(steps=4, seed=1, threads=1, resume=True), states.append)
    assert [state.step for state in states] == [4]
    assert (halves / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()


def test_the_learning_rate_warms_up_and_falls() -> None:
    rates = [learning_rate(step, 0, 1000) for step in range(1, 1001)]
    assert rates[0] < rates[100] == max(rates) == rates[700] > rates[999] > 0
    assert learning_rate(651, 650, 1000) < learning_rate(710, 650, 1000)


def test_a_gap_moves_only_the_positions_after_it() -> None:
    batch = stack(
        [TrainingSample([1, 2, 3, 4], [1.0] * 4, gap_at=2, gap=10), TrainingSample([5, 6], [1.0] * 2)]
    )
    assert batch.positions.tolist() == [[0, 1, 12], [0, 1, 2]]
    assert batch.inputs.tolist() == [[1, 2, 3], [5, 6, 0]]
    assert batch.weights.tolist() == [[1.0] * 3, [1.0, 0.0, 0.0]]
