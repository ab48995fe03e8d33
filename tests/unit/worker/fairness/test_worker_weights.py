"""The weight of a request on its way to the scheduler, and the shares that the group's status shows."""

import msgspec

from shared.accounts.live_shares import GroupParties
from tests.kits.memory_bus import MemoryBus
from tests.kits.worker.leader import Kit, chat, null_engine
from tests.kits.worker.options import scheduler_limits


async def test_the_weight_of_a_request_is_that_of_its_sequences(memory_bus: MemoryBus) -> None:
    async with Kit(memory_bus, null_engine(delay_s=0.005), steps=scheduler_limits(64, 4, 16)) as kit:
        for tenant, weight in (("a", 1.0), ("b", 2.5)):
            sampling = {"max_tokens": 1000, "ignore_eos": True}
            await kit.ask(chat(tenant, tenant=tenant, weight=weight, sampling=sampling))
        scheduler = kit.leader.parts.engine.scheduler
        assert scheduler is not None
        await kit.until(
            lambda: len(scheduler.running) == 2 and min(one.num_output for one in scheduler.running) > 4
        )
        assert {one.party: one.weight for one in scheduler.running} == {"a": 1.0, "b": 2.5}
        shares = kit.leader.detail()["party_shares"]
        assert isinstance(shares, list)
        assert len(shares) == 2
        assert abs(sum(shares) - 1) < 0.01
        told = msgspec.convert(kit.leader.detail()["parties"], GroupParties)
        assert {one.party: (one.weight, one.running, one.waiting) for one in told.rows} == {
            "a": (1.0, 1, 0), "b": (2.5, 1, 0),
        }  # fmt: skip
        assert told.quantum == 64
        assert min(one.charged for one in told.rows) > 0
        for name in ("a", "b"):
            kit.leader.parts.table.cancel_request(name, "the test is over")
        await kit.all_free(5.0)
        assert kit.leader.detail()["party_shares"] == []
        assert msgspec.convert(kit.leader.detail()["parties"], GroupParties).rows == []
