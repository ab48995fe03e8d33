"""Stacks that several chaos tests share; each test leaves its stack as it found it."""

from collections.abc import Iterator
from contextlib import closing

import pytest

from tests.kits.chaos.fleet import KEYS, Chaos
from tests.kits.chaos.services import PATIENT
from tests.kits.e2e.stack import Stack
from tests.kits.proxies.threaded import ThreadedProxy
from tests.kits.servers import RedisServer, free_port

SETTINGS = {
    "RYZ_API_KEYS": ",".join(f"{key}:{tenant}" for tenant, key in KEYS.items()),
    "RYZ_KV_FETCH": "always",  # by default, a hundred tokens are computed rather than fetched
    "RYZ_KV_FETCH_MIN_TOKENS": "16",
    "RYZ_KV_HOST_DIR": "",  # the groups have nothing but Redis between them
}


@pytest.fixture(scope="package")
def chaos(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chaos]:
    """Two groups of two ranks, routed round-robin; their Redis can be killed, slowed and filled."""
    redis = RedisServer(tmp_path_factory.mktemp("chaos-redis"))
    redis.start()
    try:
        with ThreadedProxy(redis.port) as proxy:
            options = ("--redis-url", proxy.url, "--policy", "round_robin", "--routers", "1")
            with Stack(tmp_path_factory.mktemp("chaos-stack"), *options, env=SETTINGS, calm=False) as stack:
                with closing(Chaos(stack.await_ready(), redis, proxy)) as chaos:
                    yield chaos
                assert stack.end() == 0
    finally:
        redis.stop(kill=True)


@pytest.fixture(scope="package")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """Two groups of two ranks that compute the demo model; tests may kill every service of the stack."""
    grpc = ("--grpc-port", str(free_port()))
    with Stack(tmp_path_factory.mktemp("pair-stack"), *grpc, env=PATIENT, calm=False) as stack:
        yield stack.await_ready()
        assert stack.end() == 0
