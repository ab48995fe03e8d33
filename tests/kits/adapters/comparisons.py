"""Compares a compute with PEFT: rows of two adapters and of the base in the same steps, over ranks.

A test of another compute gives its factory; everything else is the same for all.
"""

import random
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, Literal

import msgspec
import torch
from torch import Tensor

from services.worker.rank_protocol.adapters import NO_ADAPTER
from services.worker.rank_protocol.plan import StepPlan
from tests.kits.adapters.adapting import adapting
from tests.kits.adapters.peft_adapters import AdapterEntry, peft_logits, save_adapter
from tests.kits.engine.rank_threads import ComputeFactory, plan_logits
from tests.kits.families.comparisons import TOLERANCE
from tests.kits.families.models import TEXTS, family_model, text
from tests.kits.families.step_plans import NUM_BLOCKS, check_rows, mixed_plans, random_plans

ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")

# name -> targets; families with one matrix for several, with other layouts, and with experts are among them
TARGETS: dict[str, str | tuple[str, ...]] = {
    "llama": "all-linear",
    "qwen2": "all-linear",
    "gemma2": "all-linear",
    "phi3": "all-linear",  # qkv_proj, gate_up_proj
    "gpt2": "all-linear",  # c_attn, matrices as [in, out]
    "falcon, new": "all-linear",  # query_key_value, KV head by KV head
    "gpt_neox": "all-linear",
    "cohere": "all-linear",  # rotated pairs side by side
    "starcoder2": "all-linear",
    "mpt": "all-linear",
    "granite": "all-linear",
    "mixtral": ATTENTION,
}
RANKS = (4, 16, 64, 128)
Kind = Literal["LoRA", "DoRA", "DoRA of the head", "whole head", "whole heads"]
SLOTS = {"a": 0, "b": 3}  # text -> slot; the text c is of the base


@cache
def adapter_files(family: str, rank: int, kind: Kind = "LoRA") -> dict[str, Path]:
    """Two adapters of a family, by text; the second has another rank, other targets and rsLoRA.

    Args:
        kind: Of the first one; with `DoRA of the head` or `whole head`, of the second one; with `whole
            heads`, of both.
    """
    first: dict[str, Any] = {"use_dora": kind == "DoRA"}
    more: dict[str, Any] = {"use_dora": kind == "DoRA of the head", "use_rslora": True, "lora_alpha": 8}
    directory = Path(mkdtemp(prefix="adapters-"))
    targets = TARGETS[family]
    second: str | tuple[str, ...] = (*targets[:2], "lm_head")
    if isinstance(targets, str):
        second = ("lm_head",)
    whole = ["lm_head"]  # as transformers names it, also where older files have `embed_out`
    if kind in ("whole head", "whole heads"):
        second, more["modules_to_save"] = targets, whole
    if kind == "whole heads":
        first["modules_to_save"] = whole
    return {
        "a": save_adapter(family, AdapterEntry(rank, targets, first), directory / "a", seed=1),
        "b": save_adapter(
            family,
            AdapterEntry(rank // 2, second, more),
            directory / "b",
            seed=2,
        ),
    }


@cache
def wanted_logits(family: str, rank: int, kind: Kind = "LoRA") -> dict[str, Tensor]:
    """What PEFT and transformers compute, by text, [tokens, vocab]; the adapters matter in it."""
    base = family_model(family).logits
    wanted = dict(base)
    for key, source in adapter_files(family, rank, kind).items():
        wanted[key] = peft_logits(family, source, [text(key)])[0]
        assert (wanted[key] - base[key]).abs().max() > 100 * TOLERANCE
    return wanted


def with_adapters(plans: list[StepPlan], slots: Mapping[str, int]) -> list[StepPlan]:
    """The same plans with an adapter for the sequences of some texts."""
    texts = {key: text(key) for key in TEXTS}

    def slot(tokens: list[int]) -> int:
        key = next(key for key, whole in texts.items() if whole[: len(tokens)] == tokens)
        return slots.get(key, NO_ADAPTER)

    return [
        msgspec.structs.replace(
            plan, admit=[msgspec.structs.replace(new, adapter=slot(new.token_ids)) for new in plan.admit]
        )
        for plan in plans
    ]


def check_mixed_adapters(
    family: str, rank: int, world: int, compute: ComputeFactory, kind: Kind = "LoRA"
) -> None:
    """Whole and chunked prompts, decodes and shared blocks of two adapters and the base, mixed."""
    plans, rows = mixed_plans(*(text(key) for key in TEXTS))
    computed = _computed(
        family, world, with_adapters(plans, SLOTS), compute, adapter_files(family, rank, kind)
    )
    check_rows(computed, rows, wanted_logits(family, rank, kind), TOLERANCE)


def check_same_bits(family: str, rank: int, world: int, compute: ComputeFactory, kind: Kind = "LoRA") -> None:
    """A token's logits have the same bits in any batch; the base's are those without adapters."""
    files = adapter_files(family, rank, kind)
    check_bits(lambda plans: _computed(family, world, plans, compute, files))


def check_bits(computing: Callable[[list[StepPlan]], list[Tensor]]) -> None:
    """The same for the logits of plans whose adapters are in `SLOTS`."""
    texts = {key: text(key) for key in TEXTS}
    seen: dict[tuple[str, int], Tensor] = {}
    repeated = 0
    for seed, slots in ((1, SLOTS), (2, SLOTS), (3, {})):
        plans, rows = random_plans(texts, random.Random(seed))
        computed = computing(with_adapters(plans, slots))
        for found, wanted in zip(computed, rows, strict=True):
            for row, location in zip(found, wanted, strict=True):
                if slots or location[0] not in SLOTS:
                    repeated += location in seen
                    assert torch.equal(seen.setdefault(location, row), row), location
    assert repeated > 10


def _computed(
    family: str, world: int, plans: list[StepPlan], compute: ComputeFactory, files: Mapping[str, Path]
) -> list[Tensor]:
    sources = {SLOTS[key]: source for key, source in files.items()}
    return plan_logits(family_model(family).directory, world, plans, NUM_BLOCKS, adapting(compute, sources))
