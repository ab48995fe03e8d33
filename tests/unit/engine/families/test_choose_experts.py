"""The choice of experts, beside a slow one written out for a single token."""

from dataclasses import replace

import pytest
import torch

from services.worker.engine.config.layer import ExpertsConfig, MlpConfig
from services.worker.engine.plain.layers.experts import choose_experts

BASE = ExpertsConfig(count=12, chosen=3, expert=MlpConfig(inner=8), scale=1.7)
CASES = {
    "softmax": BASE,
    "softmax, normalized": replace(BASE, normalize=True),
    "chosen logits": replace(BASE, scoring="softmax_chosen"),
    "sigmoid": replace(BASE, scoring="sigmoid", normalize=True),
    "largest of groups": replace(BASE, groups=4, chosen_groups=2),
    "two largest of groups": replace(BASE, scoring="sigmoid", groups=3, chosen_groups=1, group_score="top2"),
}


def _one_token(logits: list[float], config: ExpertsConfig, bias: list[float]) -> dict[int, float]:
    """Experts and weights of one token."""
    row = torch.tensor(logits)
    scores = {"softmax": row.softmax(0), "sigmoid": row.sigmoid(), "softmax_chosen": row}[config.scoring]
    wanted = [float(score) + more for score, more in zip(scores, bias, strict=True)]
    size, allowed = config.count // config.groups, set(range(config.count))
    if config.groups > 1:
        counted = 2 if config.group_score == "top2" else 1
        sums = [
            sum(sorted(wanted[group * size : (group + 1) * size])[-counted:])
            for group in range(config.groups)
        ]
        best = sorted(range(config.groups), key=lambda group: -sums[group])[: config.chosen_groups]
        allowed = {expert for expert in allowed if expert // size in best}
    chosen = sorted(allowed, key=lambda expert: -wanted[expert])[: config.chosen]
    weights = torch.tensor([float(scores[expert]) for expert in chosen])
    if config.scoring == "softmax_chosen":
        weights = weights.softmax(0)
    if config.normalize:
        weights = weights / weights.sum()
    return dict(zip(chosen, (weights * config.scale).tolist(), strict=True))


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("biased", [False, True])
def test_choice_and_weights(name: str, biased: bool) -> None:
    config, draw = CASES[name], torch.Generator().manual_seed(5)
    logits = torch.randn(50, config.count, generator=draw)
    bias = torch.randn(config.count, generator=draw) * biased
    experts, weights = choose_experts(logits, config, bias if biased else None)
    for row, numbers, shares in zip(logits.tolist(), experts.tolist(), weights.tolist(), strict=True):
        assert numbers == sorted(numbers)
        assert dict(zip(numbers, shares, strict=True)) == pytest.approx(
            _one_token(row, config, bias.tolist()), rel=1e-5
        )


def test_of_equal_scores_the_first_experts_are_taken() -> None:
    experts, _ = choose_experts(torch.zeros(40, BASE.count), BASE, None)
    assert experts.tolist() == [[0, 1, 2]] * 40
    grouped = replace(BASE, groups=4, chosen_groups=2, chosen=4)
    assert choose_experts(torch.zeros(3, BASE.count), grouped, None)[0].tolist() == [[0, 1, 2, 3]] * 3
