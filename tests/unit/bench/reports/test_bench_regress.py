"""`make regress`: what counts as a loss beyond noise, and what the command says of wrong words."""

import random

import pytest

from benchmarks.compare.report_figures import Rows
from benchmarks.lib.measuring import BenchError
from benchmarks.regress.__main__ import main
from benchmarks.regress.trees import base_tree, commit_of
from benchmarks.regress.verdict import LEAST_ROUNDS, Verdict, bound_index, judge

ROW = "serving: concurrency 32"


def rounds(seed: int, loss: float = 0.0, *, noise: float = 0.03, outliers: float = 0.0) -> list[Rows]:
    """Twelve rounds of figures that vary by `noise`, and in that share of runs by ten times as much."""
    drawn = random.Random(seed)

    def factor() -> float:
        return 1 + abs(drawn.gauss(0, noise)) * (10 if drawn.random() < outliers else 1)

    return [
        {ROW: {"cpu_ms_per_request": (1 + loss) * factor(), "requests_per_s": 1000 / (1 + loss) / factor()}}
        for _ in range(12)
    ]


def verdicts(base: list[Rows], new: list[Rows]) -> list[Verdict]:
    return [one.verdict for one in judge(base, new, margin=0.03)]


def test_a_loss_of_ten_percent_is_found_and_noise_is_not_taken_for_one() -> None:
    found = [verdicts(rounds(2 * seed), rounds(2 * seed + 1, 0.1)) for seed in range(200)]
    assert sum(one == ["worse", "worse"] for one in found) > 180
    for outliers in (0.0, 0.1, 0.3):
        pairs = (
            (rounds(seed, outliers=outliers), rounds(-seed, outliers=outliers)) for seed in range(1, 200)
        )
        assert sum("worse" in verdicts(*pair) for pair in pairs) <= 2


def test_on_a_quiet_machine_the_same_is_the_same_and_a_gain_is_a_gain() -> None:
    assert verdicts(rounds(1, noise=0.001), rounds(2, noise=0.001)) == ["same", "same"]
    assert verdicts(rounds(1, noise=0.001), rounds(2, -0.2, noise=0.001)) == ["better", "better"]


def test_a_figure_that_only_one_commit_has_is_left_out() -> None:
    base = [{ROW: {"p50_ms": 1.0, "errors": 0.0}} for _ in range(8)]
    new: list[Rows] = [{ROW: {"errors": 0.0, "p95_ms": 2.0}, "other": {"p50_ms": 1.0}} for _ in range(8)]
    (only,) = judge(base, new, margin=0.03)
    assert (only.figure, only.verdict, only.ratio) == ("errors", "same", 1.0)


def test_errors_where_there_were_none_are_worse() -> None:
    base: list[Rows] = [{ROW: {"errors": 0.0}} for _ in range(8)]
    new: list[Rows] = [{ROW: {"errors": 3.0}} for _ in range(8)]
    assert verdicts(base, new) == ["worse"]


def test_a_bound_is_on_the_wrong_side_once_in_two_hundred_at_most() -> None:
    assert [bound_index(count) for count in (8, 10, 12, 20)] == [0, 3, 7, 37]
    with pytest.raises(ValueError, match="say nothing"):
        bound_index(LEAST_ROUNDS - 1)


def test_wrong_words_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--rounds", "3"])
    assert "--rounds 3: fewer than 8 cannot tell a loss from noise" in capsys.readouterr().err
    assert main(["--base", "no-such-commit"]) == 2
    assert "git knows no commit no-such-commit" in capsys.readouterr().err


def test_the_base_stands_in_a_tree_of_its_own_and_is_removed() -> None:
    commit = commit_of("HEAD")
    with base_tree(commit) as tree:
        assert (tree / "benchmarks").is_dir()
    assert not tree.exists()
    with pytest.raises(BenchError, match="there is no tree of nothing"), base_tree("nothing"):
        pass
