"""`--memory` that is too small for any model: the refusal names it, what it gives and what is needed."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cli.__main__ import app
from cli.console import CommandError
from cli.stack.fleet.memory_option import refuse_memory
from cli.stack.fleet.on_demand import TooLargeAlone, plan_on_demand
from cli.stack.fleet.plan_text import NamedNeeds, refuse_fleet
from cli.stack.memory_needs import MachineFacts
from cli.stack.sizing import DoesNotFit, choose_sizing
from tests.unit.cli.fleet.test_cli_fleet_sizing import GIB, model_of

SMALL, LARGE = NamedNeeds("small", model_of(GIB)), NamedNeeds("large", model_of(3 * GIB))
LIMIT = int(0.7 * GIB)
MACHINE = MachineFacts(8, LIMIT, kernels=True, store_bytes=3 * GIB, packed_bytes=64 * GIB, limit_bytes=LIMIT)


def given(gib: float) -> MachineFacts:
    return replace(MACHINE, free_bytes=int(gib * GIB), limit_bytes=int(gib * GIB))


@pytest.mark.parametrize("on_demand", [True, False])
def test_the_least_that_is_named_is_enough_and_a_tenth_less_is_not(on_demand: bool) -> None:
    said = refuse_memory([LARGE, SMALL], MACHINE, on_demand=on_demand)
    assert said.startswith(
        "`--memory` is too small for any of the 2 models: the stack gets 717 MiB, and small"
    )
    least = re.search(r"small, the smallest of them, needs `--memory ([\d.]+)` or more", said)
    assert least
    enough, too_little = given(float(least[1])), given(float(least[1]) - 0.1)
    needs = SMALL.needs
    if on_demand:
        plan_on_demand([needs], [False], enough)
        with pytest.raises(TooLargeAlone):
            plan_on_demand([needs], [False], too_little)
    else:
        choose_sizing(needs.size, needs.context, enough, needs.given)
        with pytest.raises(DoesNotFit):
            choose_sizing(needs.size, needs.context, too_little, needs.given)
    assert refuse_memory([LARGE, SMALL], enough, on_demand=on_demand) == "", "one of them fits"


def test_other_causes_are_not_put_down_to_the_option() -> None:
    assert refuse_memory([SMALL], replace(MACHINE, limit_bytes=0), on_demand=True) == ""
    beside_stores = replace(MACHINE, free_bytes=LIMIT - 1)
    assert refuse_memory([SMALL], beside_stores, on_demand=True) == ""
    assert refuse_memory([], MACHINE, on_demand=True) == ""


def test_models_that_fit_only_without_the_option_are_told_its_name() -> None:
    said = refuse_fleet([SMALL, LARGE], given(4.0))
    assert said.startswith("The models do not fit beside each other into what `--memory` gives the stack.")
    assert "`--memory` gives the stack 4.0 GiB, of which the other services need" in said
    assert re.search(r"[\d.]+ [GM]iB more with `--memory`\.$", said)
    beside = replace(given(4.0), free_bytes=3 * GIB)
    assert "`--memory` gives the stack 4.0 GiB, 3.0 GiB beside the stores, of which" in refuse_fleet(
        [LARGE], beside
    )


def test_a_models_file_is_not_blamed_for_the_option(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RYZ_DEVICE", raising=False)
    file = tmp_path / "models.toml"
    entry = '[[models]]\nsource = "demo"\nload = "demand"\n'
    file.write_text(f'{entry}{entry}name = "two"\n')
    shown = CliRunner().invoke(app, ["models", "plan", str(file), "--memory", "0.3"])
    assert isinstance(shown.exception, CommandError)
    assert shown.exception.exit_code == 1
    said = str(shown.exception)
    assert said.startswith("`--memory` is too small for any of the 2 models: the stack gets 308 MiB, and")
    assert "models.toml" not in said
