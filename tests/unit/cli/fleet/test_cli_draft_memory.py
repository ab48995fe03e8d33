"""What a draft model takes counts for each group of its model."""

from dataclasses import replace
from pathlib import Path

import pytest

from cli.stack.fleet.check import checked_models
from cli.stack.fleet.declare import declare
from cli.stack.fleet.on_demand import plan_on_demand
from cli.stack.fleet.plan_text import NamedNeeds, refuse_fleet
from cli.stack.machine import examine
from cli.stack.memory_needs import GivenSizing, MachineFacts, draft_bytes, group_bytes, process_bytes
from cli.stack.options import UpOptions
from cli.stack.sizing import choose_sizings
from tests.unit.cli.fleet.test_cli_fleet_sizing import GIB, model_of
from tests.unit.cli.fleet.test_cli_models_file import write

MACHINE = MachineFacts(8, 16 * GIB, kernels=True, packed_bytes=64 * GIB)


def test_each_group_counts_a_draft_model_of_its_own() -> None:
    alone = model_of(GIB, GivenSizing(groups=2))
    drafting = replace(alone, given=replace(alone.given, draft_bytes=300))
    assert group_bytes(drafting) == process_bytes(alone.size) + 300
    (without,), (with_draft,) = (plan_on_demand([one], [False], MACHINE).groups for one in (alone, drafting))
    assert (with_draft.first - without.first, with_draft.further - without.further) == (300, 300)
    (one,), (other,) = (choose_sizings([model], MACHINE) for model in (alone, drafting))
    assert other.needed_bytes - one.needed_bytes == 2 * 300


def test_a_refusal_names_the_draft_model() -> None:
    models = [NamedNeeds(name, model_of(GIB, GivenSizing(draft_bytes=5 * GIB))) for name in ("a", "b")]
    assert "for processes and its draft model)" in refuse_fleet(models, MACHINE)


@pytest.mark.parametrize(("speculation", "counts"), [("", True), ("draft", True), ("lookup", False)])
def test_a_draft_model_counts_if_it_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, speculation: str, counts: bool
) -> None:
    monkeypatch.setenv("RYZ_SPECULATION", speculation)
    monkeypatch.delenv("RYZ_DEVICE", raising=False)
    file = write(tmp_path, '[[models]]\nsource = "demo"\ndraft_model = "demo"\n')
    options = UpOptions(models=file, kernels="plain")
    declared = declare(options, {})
    models = checked_models(options, declared, pull=False)
    machine = MachineFacts(2, 8 * GIB, kernels=False)
    (named,) = examine(options, models, machine, declared)
    size = named.needs.size
    assert named.needs.given.draft_bytes == (draft_bytes(size, "", kernels=False) if counts else 0)
    assert (
        draft_bytes(size, "", kernels=False)
        > size.weight_bytes("fp32") + size.kv_token_bytes("fp32") * 16_384
    )
