"""How kvstate shows its Redis servers."""

from prometheus_client import CollectorRegistry

from services.kvstate.redis.link import RedisLink
from services.kvstate.redis.metrics import MeasuredRedis, RedisCollector, RedisMemory


async def test_a_redis_is_shown_with_its_answers_and_its_memory(redis_url: str) -> None:
    link = RedisLink(redis_url, timeout_s=5, max_connections=2, name="session store", reason="test")
    registry, away = CollectorRegistry(), [False]
    measured = MeasuredRedis("kv", link.exchanges, lambda: away[0], lambda: RedisMemory(5, 7))
    registry.register(RedisCollector([measured]))
    for _ in range(3):
        await link.pipeline([("PING",)])
    await link.close()

    def value(name: str) -> float | None:
        return registry.get_sample_value(f"ryz_kvstate_redis_{name}", {"store": "kv"})

    assert value("seconds_count") == 3
    assert 0 < (value("seconds_sum") or 0) < 5
    assert (value("up"), value("memory_bytes"), value("memory_limit_bytes")) == (1, 5, 7)
    away[0] = True
    assert value("up") == 0
