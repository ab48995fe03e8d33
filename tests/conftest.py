"""Fixtures that every test may use: real servers, started once, and buses of both kinds.

Servers listen on free ports of 127.0.0.1 and end with the test run. Databases and subjects are shared by all
tests of a run: use names of your own.
"""

import gc
import os
import shutil
import signal
import sys
import tempfile
import zlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import structlog

from shared.bus.nats import NatsBus
from tests.kits.engine.small_models import small_model
from tests.kits.memory_bus import MemoryBus
from tests.kits.parallel.forked_run import ForkedRun
from tests.kits.parallel.import_order import import_for_forks, import_tests, modules_of_tests, part_first
from tests.kits.parallel.side_by_side import StackScheduling, give_way, sort_for_many_processes
from tests.kits.programs.launch import ProgramServer
from tests.kits.public_certificates import share_public_certificates
from tests.kits.servers import GuardedRedis, NatsServer, RedisServer

DEMO = Path(__file__).parents[1] / "models" / "demo"


@pytest.fixture(scope="session")
def nats_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a real broker."""
    server = NatsServer(tmp_path_factory.mktemp("nats"))
    server.start()
    yield server.url
    server.stop()


@pytest.fixture(scope="session")
def redis_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a real, empty Redis."""
    server = RedisServer(tmp_path_factory.mktemp("redis"))
    server.start()
    yield server.url
    server.stop()


@pytest.fixture(scope="session")
def guarded_redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GuardedRedis]:
    """A real Redis with the users of a deployment; `url("kvstate")` is what that service would be given."""
    server = GuardedRedis(tmp_path_factory.mktemp("guarded-redis"))
    server.start()
    yield server
    server.stop()


model = small_model(scope="session")


@pytest.fixture
def demo_copy(tmp_path: Path) -> Path:
    """A copy of the demo model, which a test may change."""
    return Path(shutil.copytree(DEMO, tmp_path / "model"))


@pytest.fixture
async def nats_bus(nats_url: str) -> AsyncIterator[NatsBus]:
    """A connection to the real broker."""
    bus = await NatsBus.connect(nats_url, name="test")
    yield bus
    await bus.close()


@pytest.fixture
async def memory_bus() -> AsyncIterator[MemoryBus]:
    """A bus inside this process."""
    bus = MemoryBus()
    yield bus
    await bus.close()


@pytest.fixture(autouse=True)
def logging_as_before() -> Iterator[None]:
    """Resets logging, which commands and services in this process and fixtures of modules configure."""
    structlog.reset_defaults()
    yield
    structlog.reset_defaults()


@pytest.fixture(scope="module", autouse=True)
def what_is_left_open_is_found_here() -> Iterator[None]:
    """What tests of a file left open fails them, and not a later test during which memory is collected."""
    yield
    gc.collect()


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Let torch compute in one thread, and draw the same in each run.

    Waiting for a second thread costs small tensors more than computing. What a test draws without a generator
    of its own would depend on the tests before it in the same process.
    """
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.manual_seed(zlib.crc32(item.nodeid.encode()))
        if torch.get_num_threads() > 1:
            torch.set_num_threads(1)


def pytest_configure(config: pytest.Config) -> None:
    """Run tests in as many forked processes as `make test` asks for."""
    share_public_certificates()
    records = tempfile.mkdtemp(prefix="ryz-state-home-")  # not the user's, whose stack is none of these
    os.environ["XDG_STATE_HOME"] = records
    config.add_cleanup(lambda: shutil.rmtree(records, ignore_errors=True))
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in the background of a shell; tests interrupt
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if processes := os.environ.pop("RYZ_TEST_PROCESSES", ""):
        config.pluginmanager.register(ForkedRun(int(processes)), "forked-run")
        if not config.pluginmanager.has_plugin("tests.kits.compiled"):  # those tests start no programs
            config.add_cleanup(ProgramServer().end)


@pytest.hookimpl(tryfirst=True)
def pytest_collection(session: pytest.Session) -> None:
    """Share the first import of all tests among parallel processes, if all are asked for."""
    root = session.config.rootpath
    if "PYTEST_XDIST_WORKER" in os.environ and session.config.args in (["tests"], [str(root / "tests")]):
        part = int(os.environ["PYTEST_XDIST_WORKER"].removeprefix("gw"))
        parts = int(os.environ["PYTEST_XDIST_WORKER_COUNT"])
        import_tests(part_first(modules_of_tests(root), part, parts))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Put long files first where several processes share the work."""
    if config.pluginmanager.has_plugin("forked-run"):
        sort_for_many_processes(items)
        import_for_forks(item.nodeid for item in items)
    if "PYTEST_XDIST_WORKER" in os.environ:
        sort_for_many_processes(items)
        give_way(os.environ["PYTEST_XDIST_WORKER"])


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> StackScheduling:
    """Keep files together that share a stack."""
    return StackScheduling(config, log)
