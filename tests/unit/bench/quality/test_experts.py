"""8 bits in the experts of a trained model: the demo's MLPs as experts lose no more than they lose as MLPs.

Random weights say little about the loss of 8 bits, and no trained mixture is small enough for a test.
So the demo becomes a mixture that computes the same function: either each expert is a part of the MLP's
inner features and all are chosen, or each is the whole MLP and a random router chooses some.
"""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from benchmarks.quality.own_logits import OwnLogits
from benchmarks.quality.quality import score_text
from benchmarks.quality.scored_texts import text_windows
from cli.stack.model_dir import demo_model
from services.worker.engine.native.build import targets
from services.worker.model_files.load_model import load_model

EXPERTS = 4
CHOSEN = {"parts of the MLP": EXPERTS, "copies of the MLP": 2}
# seen: 0.00237 as MLPs, 0.00233 as parts, 0.00236 as copies
MOST_KL, MOST_TIMES = 0.005, 1.2
pytestmark = pytest.mark.skipif(not targets(), reason="the kernels are for x86-64 with AVX2")


def as_mixture(model: Path, directory: Path, chosen: int) -> Path:
    """A Llama with experts in place of its MLPs."""
    shutil.copytree(model, directory)
    whole = chosen < EXPERTS
    config = json.loads((directory / "config.json").read_text())
    inner = config["intermediate_size"] // (1 if whole else EXPERTS)
    config |= {"architectures": ["MixtralForCausalLM"], "model_type": "mixtral", "intermediate_size": inner}
    config |= {"num_local_experts": EXPERTS, "num_experts_per_tok": chosen, "sliding_window": None}
    for name in ("attention_bias", "mlp_bias"):
        del config[name]
    (directory / "config.json").write_text(json.dumps(config))
    found: dict[str, Tensor] = {}
    for name, tensor in load_file(directory / "model.safetensors").items():
        layer, _, part = name.partition(".mlp.")
        if not part:
            found[name] = tensor
            continue
        matrix = {"gate_proj.weight": "w1", "down_proj.weight": "w2", "up_proj.weight": "w3"}[part]
        moe = f"{layer}.block_sparse_moe"
        router = torch.zeros(EXPERTS, config["hidden_size"])
        if whole:
            router.normal_(generator=torch.Generator().manual_seed(len(found)))
        found[f"{moe}.gate.weight"] = router
        for expert in range(EXPERTS):
            rows = slice(None) if whole else slice(expert * inner, (expert + 1) * inner)
            # each of the parts has a weight of one in `EXPERTS`, which are a power of two
            own = tensor if whole else EXPERTS * tensor[:, rows] if matrix == "w2" else tensor[rows]
            found[f"{moe}.experts.{expert}.{matrix}.weight"] = own.clone(
                memory_format=torch.contiguous_format
            )
    save_file(found, directory / "model.safetensors", {"format": "pt"})
    return directory


def test_int8_experts_lose_no_more_than_int8_mlps(tmp_path: Path) -> None:
    models = {name: as_mixture(demo_model(), tmp_path / name, chosen) for name, chosen in CHOSEN.items()}
    windows = text_windows(load_model(demo_model(), "m"), 256, 64)

    def source(model: Path, precision: str) -> OwnLogits:
        return OwnLogits(model, precision, 1, sequences=len(windows), length=64)  # type: ignore[arg-type]

    exact = source(demo_model(), "fp32")
    sources = {"dense": source(demo_model(), "int8")}
    for name, model in models.items():
        sources |= {f"{name}, fp32": source(model, "fp32"), name: source(model, "int8")}
    try:
        scores = score_text(exact, sources, windows, lambda _: None)
    finally:
        for each in (exact, *sources.values()):
            each.close()
    kl = {name: score.figures()["kl"] for name, score in scores.items()}
    for name in models:
        assert kl[f"{name}, fp32"] < 1e-6  # the same function
        assert 0 < kl[name] < min(MOST_KL, MOST_TIMES * kl["dense"]), kl
