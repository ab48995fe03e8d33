"""Groups that run at any time: what `min_groups` starts, takes and refuses."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cli.__main__ import app
from cli.console import CommandError
from cli.stack.fleet.check import checked_models
from cli.stack.fleet.declare import declare
from cli.stack.fleet.on_demand import TooManyAtStart, plan_on_demand
from cli.stack.fleet.one_more import read_entry
from cli.stack.machine import settle_sizing
from cli.stack.memory_needs import GivenSizing, MachineFacts
from cli.stack.options import UpOptions
from cli.stack.plan import plan_stack
from cli.stack.probes import Probes
from shared.errors import InvalidRequest
from tests.kits.supervisor import options
from tests.unit.cli.fleet.test_cli_fleet_sizing import GIB, model_of
from tests.unit.cli.fleet.test_cli_models_file import mistakes, write

MACHINE = MachineFacts(8, 8 * GIB, kernels=True)


def test_the_least_groups_of_all_models_fit_beside_each_other() -> None:
    one, two = GivenSizing(groups=2, min_groups=1), GivenSizing(groups=2, min_groups=2)
    small, large = model_of(1 * GIB, one), model_of(2 * GIB, two)
    plan = plan_on_demand([small, large], [True, True], MACHINE)
    assert [sizing.groups for sizing in plan.sizings] == [2, 2], "more may come where there is room"
    least = plan.groups[0].first + plan.groups[1].first + plan.groups[1].further
    assert least <= plan.budget_bytes
    assert plan.budget_bytes < least + plan.groups[0].further, "not all of them fit at once, and need not"
    all_kept = replace(small, given=two)
    with pytest.raises(TooManyAtStart):
        plan_on_demand([all_kept, large, model_of(GIB)], [True, True, True], MACHINE)


@pytest.mark.parametrize(("groups", "started"), [("groups = 3\nmin_groups = 2", 2), ("min_groups = 2", 2)])
async def test_the_least_groups_start_with_the_stack_and_the_others_on_demand(
    tmp_path: Path, groups: str, started: int
) -> None:
    file = write(tmp_path, f'[[models]]\nsource = "demo"\nload = "demand"\n{groups}\n')
    given = options(tmp_path, models=file, engine="null")
    declared = declare(UpOptions(models=file, engine="null"), {})
    settled = settle_sizing(given, checked_models(given, declared, pull=False), declared)
    assert settled.on_demand is not None
    probes = Probes()
    plan = plan_stack(given, settled.models, probes, {})
    await probes.close()
    assert sum(spec.model == "demo" for spec in plan.specs) == started
    assert len(plan.sleeping) == settled.models[0].entry.groups - started


def test_more_least_groups_than_groups_are_a_mistake_with_its_line(tmp_path: Path) -> None:
    text = (
        '[[models]]\nsource = "demo"\ngroups = 1\nmin_groups = 2\n[[models]]\nname = "b"\nsource = "demo"\n'
    )
    said = mistakes(write(tmp_path, f"{text}min_groups = 0\n"))
    assert said[1:] == [
        "4: demo: `min_groups`: 2 are more than the 1 of `groups`: make it smaller, or `groups` larger.",
        "8: b: `min_groups` must be 1 or more, got 0: leave it out.",
    ]


def test_an_added_model_may_have_least_groups() -> None:
    assert read_entry('{"source": "demo", "name": "a", "groups": 2, "min_groups": 1}').min_groups == 1
    with pytest.raises(InvalidRequest, match="3 are more than the 2") as refused:
        read_entry('{"source": "demo", "name": "a", "groups": 2, "min_groups": 3}')
    assert refused.value.data.get("param") == "min_groups"


def test_the_plan_says_which_groups_are_kept_and_why_they_do_not_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RYZ_DEVICE", raising=False)
    entry = '[[models]]\nsource = "demo"\nkv_cache_tokens = 4096\nprecision = "fp32"\n'
    file = write(tmp_path, f"{entry}groups = 2\nmin_groups = 1\n")
    shown = CliRunner().invoke(app, ["models", "plan", str(file)], catch_exceptions=False).stdout
    assert "1 group loaded now and kept, others on demand: two groups" in shown
    assert "1 to 2" in shown
    as_json = CliRunner().invoke(app, ["models", "plan", str(file), "--json"], catch_exceptions=False).stdout
    (found,) = json.loads(as_json)["models"]
    assert (found["min_groups"], found["groups"]) == (1, 2)
    least_kept = f'{entry}min_groups = 2\n[[models]]\nname = "b"\nsource = "demo"\nmin_groups = 1\n'
    file = write(tmp_path, least_kept)
    refused = CliRunner().invoke(app, ["models", "plan", str(file), "--memory", "2.2"])
    assert isinstance(refused.exception, CommandError), refused.output
    assert refused.exception.exit_code == 1
    said = str(refused.exception)
    assert said.startswith(f"{file}:9: b: The models do not fit beside each other")
    assert 'Or fewer `min_groups`. Or one of them with `load = "demand"` and without `min_groups`' in said


def test_gpus_and_options_keep_what_they_had(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("RYZ_DEVICE", "cuda")
    file = write(tmp_path, '[[models]]\nsource = "demo"\nmin_groups = 1\n')
    given = UpOptions(models=file, kernels="plain")
    declared = declare(given, {})
    models = checked_models(given, declared, pull=False)
    with pytest.raises(CommandError, match="leave out `load`, `sleep_after_s` and `min_groups`"):
        settle_sizing(given, models, declared)
