"""What a scrape shows of models, and which models count as out of service."""

import asyncio

from services.router.metrics import FleetCollector
from services.router.models.collector import ModelCollector
from tests.kits.memory_bus import MemoryBus
from tests.kits.router.controlled import Controlled
from tests.kits.router.fleet import beat
from tests.kits.router.hosts import hosted, offer
from tests.kits.waiting import until


def scrape(world: Controlled) -> dict[str, dict[str, float]]:
    """Values of the gauges by their label, of which each has one here."""
    found: dict[str, dict[str, float]] = {}
    collectors = FleetCollector(world.context.fleet, world.context.state), ModelCollector(
        world.context.state.models, world.context.fleet, world.lease.is_held, world.context.clock
    )  # fmt: skip
    for collector in collectors:
        for family in collector.collect():
            if family.name.startswith(("ryz_router_model", "ryz_router_ready")):
                found[family.name] = {
                    next(iter(sample.labels.values()), ""): sample.value for sample in family.samples
                }
    return found


async def test_a_stack_without_hosts_has_no_series_of_models(memory_bus: MemoryBus) -> None:
    shown = scrape(await Controlled(memory_bus).start())
    assert shown["ryz_router_models"] == shown["ryz_router_model_failed"] == {}
    assert shown["ryz_router_models_lease_held"] == {"": 0.0}


async def test_models_by_phase_their_demand_and_the_lease(memory_bus: MemoryBus) -> None:
    world = await Controlled(memory_bus).start()
    world.report(offer("a"), offer("b", failure="no disk", retry_ms=9000), offer("c"))
    world.models.demand.note("a", ("t", "r"), world.now)
    task = asyncio.create_task(world.lease.keep())
    await until(lambda: world.lease.is_held(world.now))
    task.cancel()
    shown = scrape(world)
    assert shown["ryz_router_models"] == {
        "ready": 0, "loading": 0, "draining": 0, "asleep": 2, "absent": 0, "failed": 1
    }  # fmt: skip
    assert shown["ryz_router_model_waiting_requests"] == {"a": 1, "b": 0, "c": 0}
    assert shown["ryz_router_model_failed"] == {"a": 0, "b": 1, "c": 0}
    assert shown["ryz_router_models_lease_held"] == {"": 1.0}


async def test_a_model_that_sleeps_is_not_out_of_service_and_one_whose_group_is_lost_is(
    memory_bus: MemoryBus,
) -> None:
    world = await Controlled(memory_bus).start()
    fleet = world.context.fleet
    for name, model in (("g0", "sleeps"), ("g1", "lost"), ("g2", "serves"), ("g3", "unhosted")):
        fleet.observe(beat(1, name=name, instance=name, model=model), world.now)
    running = [hosted("g1", "lost"), hosted("g2", "serves")]
    world.report(offer("sleeps"), offer("lost"), offer("serves"), groups=running)
    fleet.mark_lost("g0", "stopped", world.now)
    fleet.mark_lost("g1", "silent", world.now)
    fleet.mark_lost("g3", "silent", world.now)
    assert scrape(world)["ryz_router_ready_groups"] == {"lost": 0, "serves": 1, "unhosted": 0}
