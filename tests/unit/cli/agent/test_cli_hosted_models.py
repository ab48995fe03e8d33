"""What an agent does with commands and wishes, and what it reports. The time is an argument."""

from pathlib import Path
from typing import Any

import pytest

from cli.stack.agent.hosted import CommandRefused, HostedModels
from cli.stack.agent.lost_files import lost_files
from cli.stack.agent.offers import AgentPlan, make_offers
from cli.stack.fleet.entry import FoundModel, ModelEntry
from cli.stack.fleet.on_demand import GroupBytes, OnDemandPlan
from cli.stack.fleet.one_more import AddedModel
from cli.stack.memory_needs import MachineFacts
from cli.stack.supervision.process import ServiceSpec
from shared.messages import ManageModel, StartGroup, StopGroup

MIB = 2**20
STARTED_S, LEARNED_S = 1_700_000_000, 1_700_000_100  # when the host began, and learned of a model
FIRST, FURTHER, BUDGET = 600 * MIB, 400 * MIB, 1500 * MIB


async def _yes() -> bool:
    return True


def leader(number: int, model: str) -> ServiceSpec:
    return ServiceSpec(f"worker-g{number}", [], _yes, 2, 1.0, {"RYZ_GROUP": f"g{number}"}, model=model)


def hosted(**entry: Any) -> HostedModels:
    """One model in up to two groups, and a second one."""
    models = [
        FoundModel(ModelEntry(source="a", name="a", load="demand", groups=2, **entry), None),
        FoundModel(ModelEntry(source="b", name="b", load="demand", groups=1), None),
    ]
    machine = MachineFacts(2, BUDGET, kernels=True)
    plan = OnDemandPlan(BUDGET, 0, (), (GroupBytes(FIRST, FURTHER),) * 2, machine)
    leaders = [leader(0, "a"), leader(1, "a"), leader(2, "b")]
    offers = make_offers(AgentPlan("host", plan, models, {}, leaders), STARTED_S)
    return HostedModels("host", "host-1", offers, BUDGET)


def found_as(entry: ModelEntry) -> AddedModel:
    return AddedModel(FoundModel(entry, None), GroupBytes(FIRST, FURTHER), None)


def start(host: HostedModels, model: str, running: int = 0, *, epoch: int = 1, now: float = 0.0) -> str:
    spec = host.start(StartGroup(model=model, running=running, epoch=epoch), now)
    return host.note_started(spec, now).name


def test_groups_start_one_after_another_within_the_budget() -> None:
    host = hosted()
    assert start(host, "a") == "g0"
    assert start(host, "a", 1) == "g1"
    assert [group.charged_bytes for group in host.report(1.0).groups] == [FIRST, FURTHER]
    with pytest.raises(CommandRefused, match="needs 600 MiB, and 500 MiB are left"):
        start(host, "b")
    host.note_gone("g1", "", 2.0)
    assert start(host, "b", now=2.0) == "g2"


def test_weights_that_groups_share_count_as_long_as_one_of_them_is_there() -> None:
    host = hosted()
    start(host, "a")
    start(host, "a", 1)
    host.note_gone("g0", "", 1.0)
    assert host.charges() == {"g1": FIRST}


def test_a_group_counts_for_what_it_takes_if_that_is_more_than_planned() -> None:
    host = hosted()
    start(host, "a")
    host.groups["g0"].measured_bytes = FIRST + 400 * MIB
    with pytest.raises(CommandRefused, match="and 500 MiB are left"):
        start(host, "b")


def test_memory_that_other_programs_take_is_not_offered() -> None:
    host = hosted()
    start(host, "a")
    host.groups["g0"].measured_bytes, host.free_bytes = 200 * MIB, 500 * MIB
    assert host.report(1.0).budget_bytes == 700 * MIB
    with pytest.raises(CommandRefused, match="are left"):
        start(host, "b")
    host.free_bytes = 10 * BUDGET
    assert host.report(1.0).budget_bytes == BUDGET


def test_a_command_is_carried_out_once() -> None:
    host = hosted()
    start(host, "a")
    with pytest.raises(CommandRefused, match="1 groups of it run here, not 0"):
        start(host, "a", 0)


def test_commands_of_an_old_epoch_are_refused() -> None:
    host = hosted()
    start(host, "a", epoch=5)
    for late in (lambda: start(host, "a", 1, epoch=4), lambda: host.stop(StopGroup(group="g0", epoch=4))):
        with pytest.raises(CommandRefused, match="epoch 4 is behind 5"):
            late()
    assert host.report(1.0).epoch == 5
    host.stop(StopGroup(group="g0", epoch=6))


def test_a_group_that_ends_keeps_its_memory_and_its_name_until_it_is_gone() -> None:
    host = hosted()
    start(host, "b")
    host.note_ready("g2", 1.5)
    host.stop(StopGroup(group="g2", epoch=1))
    (group,) = host.report(2.0).groups
    assert (group.phase, group.charged_bytes, group.load_ms, group.age_ms) == ("stopping", FIRST, 1500, 2000)
    with pytest.raises(CommandRefused, match="is ending already"):
        host.stop(StopGroup(group="g2", epoch=1))
    with pytest.raises(CommandRefused, match="1 groups of it run here, not 0"):
        start(host, "b")
    with pytest.raises(CommandRefused, match="still ending"):
        start(host, "b", 1)
    host.note_gone("g2", "", 3.0)
    assert start(host, "b", now=3.0) == "g2"
    with pytest.raises(CommandRefused, match="does not run here"):
        host.stop(StopGroup(group="g9", epoch=1))


def test_a_load_that_fails_is_tried_again_later_and_later() -> None:
    host, waits = hosted(), list[float]()
    now = 0.0
    for _ in range(9):
        start(host, "b", now=now)
        host.note_gone("g2", "worker-g2 ended (exit code 1)", now)
        offer = host.report(now).models[1]
        assert offer.failure == ("worker-g2 ended (exit code 1)" if waits else "")
        with pytest.raises(CommandRefused, match="its last load failed: worker-g2 ended"):
            start(host, "b", now=now)
        waits.append(offer.retry_ms / 1000)
        now += waits[-1]
    assert waits == [5, 10, 20, 40, 80, 160, 300, 300, 300]
    start(host, "b", now=now)
    host.note_ready("g2", now + 1)
    assert (host.report(now).models[1].failure, host.offers["b"].failures) == ("", 0)


def test_a_failure_that_will_come_again_is_told_at_once() -> None:
    host = hosted()
    start(host, "b")
    host.note_gone("g2", "it refuses its settings", 0.0, final=True)
    assert host.report(0.0).models[1].failure == "it refuses its settings"


def test_a_model_whose_files_are_gone_is_told_by_them(tmp_path: Path) -> None:
    there, draft = tmp_path / "model.gguf", tmp_path / "draft"
    there.touch()
    draft.mkdir()
    model = FoundModel(ModelEntry(source="a", name="a"), there, draft)
    assert lost_files(model) == lost_files(FoundModel(model.entry, None)) == ""
    draft.rmdir()
    assert lost_files(model).startswith(f"{draft} is gone; put it back")
    there.unlink()
    assert lost_files(model).startswith(f"{there} is gone; put it back, and `ryz models load a`")


def test_an_operator_may_have_a_failed_model_tried_at_once() -> None:
    host = hosted()
    start(host, "b")
    host.note_gone("g2", "it ended", 0.0)
    host.manage(ManageModel(model="b", action="load"))
    assert (host.report(0.0).models[1].wish, host.report(0.0).models[1].failure) == ("load", "")
    start(host, "b")
    host.note_ready("g2", 1.0)
    assert host.report(1.0).models[1].wish == ""


def test_what_is_unloaded_stays_so_until_it_is_loaded() -> None:
    host = hosted()
    host.manage(ManageModel(model="b", action="unload"))
    with pytest.raises(CommandRefused, match="no more groups"):
        start(host, "b")
    host.manage(ManageModel(model="b", action="wake"))
    start(host, "b")


def test_a_wish_to_sleep_is_over_when_no_group_runs() -> None:
    host = hosted()
    host.manage(ManageModel(model="b", action="sleep"))
    assert host.report(0.0).models[1].wish == ""
    start(host, "b")
    host.manage(ManageModel(model="b", action="sleep"))
    assert host.report(0.0).models[1].wish == "sleep"
    host.stop(StopGroup(group="g2", epoch=1))
    host.note_gone("g2", "", 1.0)
    assert host.report(1.0).models[1].wish == ""


def test_scaling_has_the_bounds_of_the_file() -> None:
    host = hosted()
    managed = host.manage(ManageModel(model="a", action="scale", groups=3))
    assert managed is not None
    assert "room for 2 groups here" in managed.refused
    host.manage(ManageModel(model="a", action="scale", groups=1))
    start(host, "a")
    with pytest.raises(CommandRefused, match="no more groups"):
        start(host, "a", 1)
    host.manage(ManageModel(model="a", action="scale", groups=2))
    assert host.report(0.0).models[0].least_groups == 2
    managed = host.manage(ManageModel(model="a", action="sleep"))  # from now on as declared
    assert managed is not None
    assert managed.refused == ""
    offer = host.report(0.0).models[0]
    assert (offer.least_groups, offer.most_groups, offer.wish) == (0, 2, "sleep")


def test_scaling_beyond_all_memory_is_refused() -> None:
    host = hosted()
    host.free_bytes = 900 * MIB
    managed = host.manage(ManageModel(model="a", action="scale", groups=2))
    assert managed is not None
    assert managed.refused == "2 groups of it need 1000 MiB of memory, and all may take 900 MiB"


def test_a_pinned_model_does_not_sleep() -> None:
    managed = hosted(pinned=True).manage(ManageModel(model="a", action="sleep"))
    assert managed is not None
    assert "is to run at any time" in managed.refused


def test_what_is_not_offered_is_for_another_host() -> None:
    host = hosted()
    assert host.manage(ManageModel(model="c", action="load")) is None
    with pytest.raises(CommandRefused, match="does not offer model 'c'"):
        start(host, "c")


def test_a_model_that_is_added_may_run_when_it_is_found() -> None:
    host, entry = hosted(), ModelEntry(source="c", name="c", load="demand", groups=1)
    assert host.add(entry, LEARNED_S) == ""
    with pytest.raises(CommandRefused, match="no more groups"):
        start(host, "c")
    assert "a model 'c' already" in host.add(entry, LEARNED_S + 50)
    created = [STARTED_S, STARTED_S, LEARNED_S]
    assert [one.card.created_s for one in host.report(0.0).models] == created
    host.note_found(entry, found_as(entry), [leader(7, "c")])
    assert [one.card.created_s for one in host.report(0.0).models] == created
    assert start(host, "c") == "g7"
    assert "a model 'c' already" in host.add(entry, LEARNED_S)


def test_a_model_that_cannot_be_had_says_why_and_may_be_tried_again() -> None:
    host, entry = hosted(), ModelEntry(source="c", name="c", load="demand")
    host.add(entry, LEARNED_S)
    host.note_not_found(entry, "there is no such file")
    assert host.report(0.0).models[2].failure == "there is no such file"
    with pytest.raises(CommandRefused, match="no more groups"):
        start(host, "c")
    host.manage(ManageModel(model="c", action="load"))  # looks for it again
    assert host.offers["c"].is_sought
    host.note_found(entry, found_as(entry), [leader(7, "c")])
    assert host.report(0.0).models[2].wish == "load"
    assert start(host, "c") == "g7"


def test_a_model_that_is_removed_is_gone_with_its_last_group() -> None:
    host = hosted()
    start(host, "b")
    host.manage(ManageModel(model="b", action="remove"))
    assert host.report(0.0).models[1].wish == "unload"
    host.stop(StopGroup(group="g2", epoch=1))
    host.note_gone("g2", "", 1.0)
    assert [offer.card.name for offer in host.report(1.0).models] == ["a"]
    host.manage(ManageModel(model="a", action="remove"))
    assert host.report(1.0).models == []


def test_a_model_that_was_removed_while_it_was_looked_for_stays_so() -> None:
    host = hosted()
    old, new = (ModelEntry(source=source, name="c", load="demand", groups=1) for source in ("old", "new"))
    host.add(old, LEARNED_S)
    host.manage(ManageModel(model="c", action="remove"))
    host.note_found(old, found_as(old), [leader(7, "c")])
    assert "c" not in host.offers
    host.add(new, LEARNED_S)  # another source by the same name, while the first one is still being fetched
    host.note_found(old, found_as(old), [leader(7, "c")])
    host.note_not_found(old, "the first one is not there")
    assert host.sought(new) is host.offers["c"]
    assert host.offers["c"].failure == ""


def test_names_and_aliases_stay_unique() -> None:
    host = hosted(aliases=("small",))
    assert "an alias of another model" in host.add(ModelEntry(source="c", name="small"), LEARNED_S)
