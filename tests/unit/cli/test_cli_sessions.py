"""`ryz sessions` against a gateway with scripted services behind it."""

import asyncio
import io
import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from rich.console import Console
from typer.testing import CliRunner, Result

from cli.__main__ import app
from cli.sessions.view import detail, listing, size
from shared import subjects
from shared.codec import pack_tokens
from shared.identity import new_session_id
from shared.messages import ChatMessage, ModelCard, SessionRecord
from tests.kits.gateway.gateway import Gateway, running_gateway
from tests.kits.gateway.session_services import SessionServices
from tests.kits.programs.ryz_command import Ryz, refused, ryz_command

TENANT = "default"


@pytest_asyncio.fixture
async def gateway() -> AsyncIterator[Gateway]:
    async with running_gateway() as running:
        running.fleet.cards = [ModelCard(name="demo", context_length=2048, fingerprint="f1")]
        yield running


@pytest.fixture
def services(gateway: Gateway) -> SessionServices:
    return gateway.fleet.sessions


@pytest.fixture
def ryz(gateway: Gateway, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ryz:
    monkeypatch.chdir(tmp_path)
    return ryz_command("sessions", "--url", gateway.url)


def add(services: SessionServices, session_id: str, **more: Any) -> None:
    services.records[TENANT, session_id] = SessionRecord(
        session_id=session_id,
        tenant=TENANT,
        model="demo",
        version=1,
        messages=[ChatMessage(role="user", content="I am [bold]Ada[/bold].")],
        token_ids=pack_tokens(range(1200)),
        turns=1,
        last_group="g1",
        **more,
    )


def ok(result: Result) -> str:
    assert result.exit_code == 0, repr(result.exception)
    stdout: str = result.stdout
    return stdout


def names_in(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


async def test_from_the_beginning_to_the_end(ryz: Ryz, services: SessionServices) -> None:
    assert ok(await ryz("list")) == "No sessions.\n"
    assert ok(await ryz("create", "tea/1", "--system", "Be brief.", "--pin", "g1")) == "tea/1\n"
    assert services.records[TENANT, "tea/1"].messages == [ChatMessage(role="system", content="Be brief.")]
    assert services.pins == {(TENANT, "tea/1"): "g1"}
    assert re.match(r"s-[0-9a-f]{16}-", ok(await ryz("create")))
    assert "tea/1" in ok(await ryz("list"))
    assert "g0 (ready), g1 (ready)" in refused(await ryz("pin", "tea/1", "g9"), 1)
    assert "pinned to 'g1'" in refused(await ryz("move", "tea/1", "g0"), 4)
    assert ok(await ryz("unpin", "tea/1")) == "tea/1 is free.\n"
    assert "0 of 0 tokens" in ok(await ryz("move", "tea/1", "g0"))
    assert ok(await ryz("pin", "tea/1", "g0")) == "tea/1 is pinned to g0.\n"
    assert ok(await ryz("delete", "tea/1", "--yes")) == "tea/1 is deleted.\n"
    assert "no session 'tea/1'" in refused(await ryz("show", "tea/1"), 3)


async def test_show_and_list_say_what_is_known(ryz: Ryz, services: SessionServices) -> None:
    add(services, "s1")
    services.holdings = {"g1": 1184}
    shown = ok(await ryz("show", "s1", "--messages"))
    for expected in (
        "1,200 tokens",
        "4.0 KiB in 2 blocks",
        "g0",
        "1,184 of 1,200",
        "10 m 0 s",
    ):
        assert expected in shown
    assert "user: I am [bold]Ada[/bold]." in shown
    assert json.loads(ok(await ryz("show", "s1", "--json")))["groups"][0]["cached_tokens"] == 1184
    add(services, "s2", updated_ms=5)
    page = json.loads(ok(await ryz("list", "--limit", "1", "--json")))
    assert ([one["session_id"] for one in page["data"]], page["has_more"]) == (["s2"], True)
    every = json.loads(ok(await ryz("list", "--all", "--json")))
    assert ([one["session_id"] for one in every["data"]], every["has_more"]) == (["s2", "s1"], False)
    assert "There are more" in (await ryz("list", "-n", "1")).stderr


async def test_sessions_of_single_calls_can_be_left_out(ryz: Ryz, services: SessionServices) -> None:
    single = new_session_id("0123456789abcdef")
    add(services, single)
    add(services, "tea")
    both, conversations = ok(await ryz("list", "--json")), ok(await ryz("list", "--no-spare", "--json"))
    assert {one["session_id"] for one in json.loads(both)["data"]} == {single, "tea"}
    assert [one["session_id"] for one in json.loads(conversations)["data"]] == ["tea"]


async def test_a_session_goes_through_a_file(ryz: Ryz, services: SessionServices, tmp_path: Path) -> None:
    add(services, "s1")
    assert "s1.session.json" in ok(await ryz("export", "s1"))
    file = tmp_path / "s1.session.json"
    assert "--force" in refused(await ryz("export", "s1"), 4)
    assert json.loads(ok(await ryz("export", "s1", "--force", "--json")))["bytes"] == file.stat().st_size
    piped = await ryz("export", "s1", "-o", "-")
    assert json.loads(piped.stdout)["format"] == "ryzanstein.session"
    assert "exists already: choose another id, delete it, or import over it with `--replace`" in refused(
        await ryz("import", str(file)), 4
    )
    assert ok(await ryz("import", str(file), "--session", "s2")) == "s2: 1 messages, 1,200 tokens.\n"
    assert ok(await ryz("import", str(file), "--replace")).startswith("s1: ")
    assert ok(await ryz("import", "-", "--session", "s3", stdin=piped.stdout_bytes)).startswith("s3: ")
    assert {name for _, name in services.records} == {"s1", "s2", "s3"}
    file.write_bytes(file.read_bytes()[:-50])
    assert "its end is missing" in refused(await ryz("import", str(file), "--session", "s4"), 1)
    assert names_in(tmp_path) == ["s1.session.json"]


async def test_files_that_cannot_be_used(ryz: Ryz, services: SessionServices, tmp_path: Path) -> None:
    add(services, "s1")
    assert "No such file" in refused(await ryz("import", "nowhere.json"), 1)
    assert "cannot be written" in refused(await ryz("export", "s1", "-o", "no/such/place.json"), 1)
    (tmp_path / "folder").mkdir()
    assert "cannot be written" in refused(await ryz("export", "s1", "-o", "folder", "--force"), 1)
    assert names_in(tmp_path) == ["folder"]


async def test_deleting_wants_to_be_sure(
    ryz: Ryz, services: SessionServices, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(services, "s1")
    assert "--yes" in refused(await ryz("delete", "s1"), 2)
    assert (TENANT, "s1") in services.records
    monkeypatch.setattr("cli.sessions.commands.can_ask", lambda: True)
    assert "Nothing was deleted" in refused(await ryz("delete", "s1", stdin=b"n\n"), 1)
    assert "s1 is deleted" in ok(await ryz("delete", "s1", stdin=b"y\n"))
    assert services.records == {}


async def test_what_is_wrong_is_said(ryz: Ryz, services: SessionServices) -> None:
    await services.leave(subjects.SESSION_LIST)
    message = refused(await ryz("list"), 1)
    assert "KV state service does not answer" in message
    assert "try again in 1 s" in message
    assert (await ryz("pin", "s1")).exit_code == 2
    nowhere = CliRunner().invoke(app, ["sessions", "list", "--url", "http://127.0.0.1:9"])
    assert "Is the stack up?" in refused(nowhere, 1)


async def test_a_key_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running_gateway(api_keys="key-of-ada:ada") as gateway:
        words = ["sessions", "list", "--url", gateway.url]
        message = refused(await asyncio.to_thread(CliRunner().invoke, app, words), 1)
        assert "HTTP 401" in message
        with_key = [*words, "--api-key", "key-of-ada"]
        assert ok(await asyncio.to_thread(CliRunner().invoke, app, with_key)) == "No sessions.\n"
        monkeypatch.setenv("RYZ_API_KEY", "key-of-ada")
        ok(await asyncio.to_thread(CliRunner().invoke, app, words))


@pytest.mark.parametrize(
    "command", ["list", "create", "show", "pin", "unpin", "move", "export", "import", "delete"]
)
def test_every_command_has_help(command: str) -> None:
    result = CliRunner().invoke(app, ["sessions", command, "--help"])
    assert result.exit_code == 0
    for option in ("--url", "--api-key", "--state-dir", "--json"):
        assert option in result.stdout


def test_sizes() -> None:
    sizes = [0, 1023, 1024, 1536 * 1024, 3 * 2**30, 5000 * 2**40]
    assert [size(one) for one in sizes] == ["0 B", "1023 B", "1.0 KiB", "1.5 MiB", "3.0 GiB", "5,000.0 TiB"]


def test_long_names_are_folded_and_not_cut() -> None:
    one = {"session_id": "x" * 128, "model": "m", "turns": 1, "num_messages": 2, "tokens": 3, "bytes": 4}
    one |= {"blocks": 1, "byte_seconds": 0.5, "last_group": None, "pinned_group": None, "age_s": 1.0}
    one |= {"ttl_s": 0, "tenant": "t", "home": None, "groups": [], "messages": None}
    for view in (listing([one]), detail(one)):
        screen = Console(file=io.StringIO(), width=60)
        screen.print(view)
        text = screen.file.getvalue()  # type: ignore[attr-defined]
        assert text.count("x") >= 128
        assert "…" not in text
