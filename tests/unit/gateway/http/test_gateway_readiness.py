"""`/ready` of a gateway: its own state first, then a router, then a ready group."""

import asyncio

from services.gateway.readiness import FRESH_S, ReadinessCheck
from services.gateway.settings import GatewaySettings
from shared.errors import Unavailable
from shared.lifecycle import Service
from shared.messages import ModelCard, ModelList, ModelState
from tests.kits.model_host import state_of

DEMO = ModelCard(name="demo", context_length=2048)


class Routers:
    """What routers answer: models, or nothing."""

    def __init__(self) -> None:
        self.models: list[ModelCard] | None = None
        self.offered: list[ModelState] = []
        self.asked = 0

    async def ask(self) -> ModelList:
        self.asked += 1
        await asyncio.sleep(0)
        if self.models is None:
            raise Unavailable("no router")
        return ModelList(models=self.models, offered=self.offered)


async def test_a_router_and_a_ready_group_are_needed() -> None:
    service, routers, now = Service(GatewaySettings(), "gateway"), Routers(), 0.0
    broker = True
    service.add_check("broker", lambda: broker)
    check = ReadinessCheck(service, routers.ask, lambda: now)
    assert (await check.check()).reason == "starting"
    service.ready()
    broker = False
    assert (await check.check()).reason == "no_broker"
    assert routers.asked == 0
    broker = True
    found = await check.check()
    assert (found.reason, found.body["status"]) == ("no_router", "not ready")
    assert found.body["checks"] == {"broker": True, "router": False, "group": False, "accounts": True}
    routers.models, now = [], 1.0
    found = await check.check()
    assert (found.reason, found.body["checks"]["router"]) == ("no_group", True)
    assert "ryz groups list" in found.body["message"]
    routers.models, now = [DEMO], 2.0
    found = await check.check()
    assert (found.reason, found.body["status"], found.body["models"]) == ("", "ready", ["demo"])


async def test_models_that_load_for_a_request_are_enough() -> None:
    service, routers, now = Service(GatewaySettings(), "gateway"), Routers(), 0.0
    service.ready()
    check = ReadinessCheck(service, routers.ask, lambda: now)
    routers.models, routers.offered = [], [state_of("small", "asleep"), state_of("broken", "failed")]
    found = await check.check()
    assert (found.reason, found.body["models"]) == ("", ["small"])
    routers.offered, now = [state_of("broken", "failed")], 1.0
    assert (await check.check()).reason == "no_group"


async def test_many_callers_cause_one_question() -> None:
    service, routers, now = Service(GatewaySettings(), "gateway"), Routers(), 0.0
    service.ready()
    check = ReadinessCheck(service, routers.ask, lambda: now)
    found = await asyncio.gather(*(check.check() for _ in range(20)))
    assert {one.reason for one in found} == {"no_router"}
    routers.models, now = [DEMO], FRESH_S / 2
    assert (await check.check()).reason == "no_router"
    assert routers.asked == 1
    now = 2 * FRESH_S
    assert (await check.check()).reason == ""
    assert routers.asked == 2


async def test_a_gateway_that_cannot_know_whether_keys_are_needed_is_not_ready() -> None:
    service, routers, known = Service(GatewaySettings(), "gateway"), Routers(), False
    service.ready()
    routers.models = [DEMO]
    check = ReadinessCheck(service, routers.ask, knows_keys=lambda: known)
    found = await check.check()
    assert (found.reason, found.body["checks"]["accounts"]) == ("accounts_away", False)
    assert "KV state service" in found.body["message"]
    known = True
    assert (await check.check()).reason == ""
