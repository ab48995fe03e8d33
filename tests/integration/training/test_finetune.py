"""Short trainings of the demo model: the loss falls, PEFT reads the result, stops are resumed, refusals."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from cli.stack.model_dir import demo_model
from services.worker.model_files.load_model import load_model
from tests.kits.training.finetuning import demo_plan, write_chats
from training.finetune import finetune as training
from training.finetune.base_model import add_adapter, load_base, read_shape
from training.finetune.errors import BadChats, FinetuneError, Stopped
from training.finetune.finetune import FinetuneReport, finetune
from training.finetune.loss_log import read_log
from training.finetune.plan import FinetunePlan

TOKENS = torch.tensor([[5, 60, 700, 8, 90, 1000, 11, 12]])


def run(plan: FinetunePlan, **options: Any) -> FinetuneReport:
    return finetune(plan, load_model(plan.base), **options)


@torch.no_grad()
def logits_of(model: Any) -> torch.Tensor:
    found: torch.Tensor = model.eval()(input_ids=TOKENS, use_cache=False).logits
    return found


def plain_base() -> Any:
    from transformers import AutoModelForCausalLM  # noqa: PLC0415 (slow to import)

    return AutoModelForCausalLM.from_pretrained(demo_model(), dtype=torch.float32, local_files_only=True)


def test_the_loss_falls_and_peft_reads_the_result(tmp_path: Path) -> None:
    from peft import PeftModel  # noqa: PLC0415 (slow to import)

    plan, notes = demo_plan(tmp_path), list[str]()
    states = list[Any]()
    report = run(plan, note=notes.append, progress=states.append)
    assert report.held_out is not None
    assert report.held_out_before is not None
    assert report.held_out < report.held_out_before / 2
    assert [state.step for state in states] == list(range(1, report.steps + 1))
    assert any(note.startswith("memory: about") for note in notes)

    files = {path.name for path in plan.output.iterdir()}
    assert files == {"adapter_config.json", "adapter_model.safetensors", "loss.jsonl"}
    config = json.loads((plan.output / "adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == "demo"
    assert (config["r"], config["lora_alpha"], config["inference_mode"]) == (4, 8, True)
    assert config["target_modules"] == [
        "down_proj", "gate_proj", "k_proj", "o_proj", "q_proj", "up_proj", "v_proj",
    ]  # fmt: skip
    kinds = {(plan.output / name).stat().st_mode & 0o777 for name in files}
    assert len(kinds) == 1

    base = logits_of(plain_base())
    reloaded = PeftModel.from_pretrained(plain_base(), plan.output)
    adapted = logits_of(reloaded)
    merged = logits_of(reloaded.merge_and_unload())
    torch.testing.assert_close(merged, adapted, atol=1e-4, rtol=1e-4)
    assert (adapted - base).abs().max() > 0.1
    steps = [line for line in read_log(plan.output) if "loss" in line]
    assert steps[-1]["loss"] == pytest.approx(report.loss)
    assert steps[-1]["tokens"] == report.tokens


def test_equal_plans_give_equal_files(tmp_path: Path) -> None:
    plans = [demo_plan(tmp_path, output=tmp_path / name, dropout=0.1, epochs=1) for name in ("a", "b")]
    for plan in plans:
        run(plan)
    left, right = ((plan.output / "adapter_model.safetensors").read_bytes() for plan in plans)
    assert left == right
    run(demo_plan(tmp_path, output=tmp_path / "c", dropout=0.1, epochs=1, seed=1))
    assert (tmp_path / "c" / "adapter_model.safetensors").read_bytes() != left


@pytest.mark.parametrize(
    "changed",
    [{"base_bits": 4}, {"base_bits": 16}, {"base_bits": 4, "recompute": True}, {"packing": False, "packs": 4},
     {"targets": ("q_proj", "v_proj"), "held_out": 0.0}],
)  # fmt: skip
def test_other_forms_learn_as_well(tmp_path: Path, changed: dict[str, Any]) -> None:
    plan = demo_plan(tmp_path, **changed)
    report = run(plan)
    losses = [line["loss"] for line in read_log(plan.output) if "loss" in line]
    assert report.loss == losses[-1] < losses[0] * 0.7
    config = json.loads((plan.output / "adapter_config.json").read_text())
    assert config["target_modules"] == sorted(plan.targets) or not plan.targets


def test_recomputed_layers_give_the_same_losses(tmp_path: Path) -> None:
    plans = [
        demo_plan(tmp_path, output=tmp_path / str(again), recompute=again, epochs=1)
        for again in (False, True)
    ]
    for plan in plans:
        run(plan)
    left, right = ([line.get("loss", 0) for line in read_log(plan.output)] for plan in plans)
    assert left == pytest.approx(right, rel=1e-4)


def test_a_training_without_progress_ends_early(tmp_path: Path) -> None:
    plan = demo_plan(tmp_path, learning_rate=1e-9, epochs=9, patience=2)
    report = run(plan)
    assert report.steps * 3 == report.of_steps  # the first of nine epochs is the best, two more are no better


def test_a_stop_is_resumed_to_the_same_files(tmp_path: Path) -> None:
    whole = demo_plan(tmp_path, output=tmp_path / "whole", dropout=0.1)
    halves = demo_plan(tmp_path, output=tmp_path / "halves", dropout=0.1)
    expected = run(whole)
    for stop in (2, 5):
        answers = iter([False] * (stop - 1 if stop == 2 else 2) + [True])
        with pytest.raises(Stopped) as stopped:
            run(halves, resume=stop > 2, is_stopped=lambda answers=answers: next(answers))
        assert stopped.value.step == stop
    with pytest.raises(FinetuneError, match="has a training that was interrupted"):
        run(halves)
    with pytest.raises(
        FinetuneError, match=r"`--learning-rate` was 0\.005 in the interrupted training and is 0.1"
    ):
        run(demo_plan(tmp_path, output=halves.output, dropout=0.1, learning_rate=0.1), resume=True)
    write_chats(tmp_path / "other.jsonl", 23)
    other = demo_plan(tmp_path, output=halves.output, dropout=0.1, data=tmp_path / "other.jsonl")
    with pytest.raises(FinetuneError, match="`--data` is not what the interrupted training had"):
        run(other, resume=True)
    report = run(halves, resume=True)
    assert (report.loss, report.held_out, report.tokens) == (
        expected.loss,
        expected.held_out,
        expected.tokens,
    )
    for name in ("adapter_model.safetensors", "loss.jsonl", "adapter_config.json"):
        assert (whole.output / name).read_bytes() == (halves.output / name).read_bytes()
    assert not (halves.output / "checkpoints").exists()
    with pytest.raises(FinetuneError, match="There is an adapter in"):
        run(halves, resume=True)


def test_damaged_checkpoints_are_refused(tmp_path: Path) -> None:
    plan = demo_plan(tmp_path)
    with pytest.raises(FinetuneError, match="no checkpoint in"):
        run(plan, resume=True)
    with pytest.raises(Stopped):
        run(plan, is_stopped=lambda: True)
    (found,) = (plan.output / "checkpoints").iterdir()
    whole = (found / "state.safetensors").read_bytes()
    for damaged in (whole[:100], b"", whole[: len(whole) // 2]):
        (found / "state.safetensors").write_bytes(damaged)
        with pytest.raises(FinetuneError, match="is damaged"):
            run(plan, resume=True)
    (found / "state.safetensors").write_bytes(whole)
    (found / "state.json").write_text('{"step": 1}')
    with pytest.raises(FinetuneError, match="is damaged"):
        run(plan, resume=True)


def test_refusals_come_before_the_weights_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_loading(*_: Any, **__: Any) -> None:
        raise AssertionError("the weights were read")

    monkeypatch.setattr(training, "load_base", no_loading)
    for changed, reason in (
        ({"length": 4096}, "more than the model's context of 2048 tokens"),
        ({"length": 16}, "tokens, and `--length` is 16"),
        ({"targets": ("q_proj", "nothing")}, "no linear layer 'nothing'; it has down_proj, gate_proj"),
        ({"data": tmp_path / "missing"}, "cannot be read"),
    ):
        with pytest.raises(FinetuneError, match=reason):
            run(demo_plan(tmp_path, **changed))
    monkeypatch.setattr(training, "available_bytes", lambda: 2**28)
    with pytest.raises(FinetuneError, match=r"needs about .* and 256 MiB are free: take --base-bits 16"):
        run(demo_plan(tmp_path))
    assert not (tmp_path / "adapter").exists()


def test_long_chats_are_left_out_when_asked_to(tmp_path: Path) -> None:
    notes = list[str]()
    run(demo_plan(tmp_path, length=30, skip_long=True, epochs=1), note=notes.append)
    assert any("12 chats, 12 longer ones left out" in note for note in notes)
    with pytest.raises(BadChats, match=r"All chats of .* are longer"):
        run(demo_plan(tmp_path, output=tmp_path / "b", length=16, skip_long=True))


def test_a_loss_that_is_no_number_ends_the_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(plan: FinetunePlan, *, bf16: bool) -> Any:
        model = load_base(plan, bf16=bf16)
        with torch.no_grad():
            model.model.norm.weight.fill_(float("inf"))
        return model

    monkeypatch.setattr(training, "load_base", broken)
    with pytest.raises(FinetuneError, match="The loss of step 1 is no finite number"):
        run(demo_plan(tmp_path, packing=False))


def test_quantized_and_unknown_bases_are_refused(tmp_path: Path) -> None:
    base = tmp_path / "base"
    base.mkdir()
    config = json.loads((demo_model() / "config.json").read_text())
    for changed, reason in (
        ({"quantization_config": {}}, "is quantized, and adapters are trained on float weights"),
        ({"model_type": "nothing"}, "transformers cannot load"),
    ):
        (base / "config.json").write_text(json.dumps(config | changed))
        with pytest.raises(FinetuneError, match=reason):
            read_shape(demo_plan(tmp_path, base=base))


def test_only_the_adapter_is_trained(tmp_path: Path) -> None:
    plan = demo_plan(tmp_path)
    shape, names = read_shape(plan)
    adapted = add_adapter(load_base(plan, bf16=False), plan, names)
    trained = {name: one.numel() for name, one in adapted.named_parameters() if one.requires_grad}
    assert all("lora_" in name for name in trained)
    assert sum(trained.values()) == plan.rank * shape.adapted
    assert shape.linear + shape.other == sum(one.numel() for one in plain_base().parameters())
