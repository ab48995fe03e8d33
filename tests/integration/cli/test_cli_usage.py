"""`ryz tenants usage` over a real broker, with the KV state service's sums behind it."""

import asyncio
import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from cli.console import CommandError
from cli.tenants.usage import usage
from shared import codec, subjects
from shared.bus import Message
from shared.bus.nats import NatsBus
from shared.messages import UsagePage, UsageQuery, UsageSum
from tests.kits.servers import NatsServer

app = typer.Typer()
app.command()(usage)
SUMS = [
    UsageSum(day="2026-11-01", tenant="acme", model="demo", requests=2, prompt_tokens=1000, money=1_500_000),
    UsageSum(day="2026-11-02", tenant="other", model="demo", requests=1, completion_tokens=7),
]


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[NatsServer]:
    """A broker, with a service on a thread of its own that answers with `SUMS`."""
    server = NatsServer(tmp_path)
    server.start()
    ready, over = threading.Event(), threading.Event()

    async def serve() -> None:
        bus = await NatsBus.connect(server.url, name="sums")

        async def answer(message: Message) -> None:
            query = codec.decode(message.data, UsageQuery)
            found = [one for one in SUMS if query.tenant in {"", one.tenant} and one.day >= query.since]
            await bus.publish(message.reply, codec.encode(UsagePage(sums=found, currency="EUR")))

        await bus.subscribe(subjects.USAGE, answer)
        ready.set()
        while not over.is_set():  # noqa: ASYNC110 (set by another thread)
            await asyncio.sleep(0.02)
        await bus.close()

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    assert ready.wait(30)
    yield server
    over.set()
    thread.join()
    server.stop()


def run(broker: NatsServer, *args: str) -> Result:
    return CliRunner().invoke(app, [*args, "--nats-url", broker.url])


def test_json_csv_and_a_table(broker: NatsServer) -> None:
    shown = json.loads(run(broker, "--json", "--by", "tenant").stdout)
    assert shown["currency"] == "EUR"
    assert [(one["tenant"], one["requests"]) for one in shown["data"]] == [("acme", 2), ("other", 1)]
    lines = run(broker, "acme", "--csv", "--by", "day,model").stdout.splitlines()
    assert lines[0].startswith("day,model,requests,")
    assert len(lines) == 2
    table = run(broker, "--since", "2026-11-01").stdout
    assert "1.500000" in table
    assert "1,000" in table
    assert "Nothing was used" in run(broker, "none").stdout


def test_wrong_options_end_with_2(broker: NatsServer) -> None:
    for wrong in (["--by", "colour"], ["--since", "2026-13-01"], ["--json", "--csv"]):
        error = run(broker, *wrong).exception
        assert isinstance(error, CommandError)
        assert error.exit_code == 2
