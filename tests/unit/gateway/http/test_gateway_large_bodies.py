"""Large bodies: which bodies count as large, and how tenants take turns with them."""

import asyncio
import itertools

import pytest

from services.gateway.admission.bodies.large import REST, LargeBodies, is_large
from tests.kits.waiting import PATIENCE_S


class Clock:
    """A clock that the test sets."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def test_large_is_a_matter_of_values_and_not_of_bytes() -> None:
    assert not is_large(b'"%b"' % (b"x" * 2**20))
    assert not is_large(b"[%b]" % b",".join([b"1"] * 4096))
    assert is_large(b"[%b]" % b",".join([b"1"] * 4097))


async def test_after_a_large_body_comes_a_rest_and_then_another_tenant() -> None:
    clock, loop = Clock(), asyncio.get_running_loop()
    large, began = LargeBodies(clock), list[tuple[str, float]]()

    async def read(tenant: str) -> None:
        async with large.body_slot(tenant):
            began.append((tenant, loop.time()))
            clock.now_s += 0.02

    await asyncio.gather(read("many"), read("many"), read("many"), read("few"))
    assert [tenant for tenant, _ in began] == ["many", "many", "few", "many"]
    gaps_s = [after - before for (_, before), (_, after) in itertools.pairwise(began)]
    assert min(gaps_s) >= 0.9 * REST * 0.02


async def test_one_that_is_refused_rests_too_and_passes_its_slot_on() -> None:
    clock, loop = Clock(), asyncio.get_running_loop()
    large, began_s = LargeBodies(clock), loop.time()

    async def refuse() -> None:
        async with large.body_slot("a"):
            clock.now_s += 0.02
            raise ValueError("wrong")

    with pytest.raises(ValueError, match="wrong"):
        await refuse()
    async with large.body_slot("b"):
        assert loop.time() - began_s >= 0.9 * REST * 0.02


async def test_a_tenant_that_goes_while_it_waits_holds_up_no_other() -> None:
    large = LargeBodies(Clock())
    async with large.body_slot("a"):
        waiting = asyncio.create_task(large.body_slot("b").__aenter__())
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait([waiting])
    async with asyncio.timeout(PATIENCE_S), large.body_slot("c"):
        pass
