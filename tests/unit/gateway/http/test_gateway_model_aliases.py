"""Other names of models: what the setting may say, and when a pattern is used."""

import asyncio

import pytest

from services.gateway.answering.intake.model_names import (
    REGISTER_WAIT_S,
    AdapterNames,
    ModelAliases,
    parse_aliases,
)
from shared.adapters.register import AdapterRegister
from shared.errors import Unavailable
from shared.messages import Adapter


class Fleet:
    def __init__(self, *names: str) -> None:
        self.names = list(names)
        self.asked = 0
        self.away = False

    async def list_names(self) -> list[str]:
        self.asked += 1
        if self.away:
            raise Unavailable("no router")
        return self.names


def test_the_setting_is_read_in_order() -> None:
    assert parse_aliases(" gpt-4o = small , gpt-*=a/b,*=small,") == {
        "gpt-4o": "small", "gpt-*": "a/b", "*": "small",
    }  # fmt: skip
    assert parse_aliases("") == {}


@pytest.mark.parametrize(
    ("text", "words"),
    [("gpt", "entry 1"), ("a=b,=c", "entry 2"), ("a=*", "one model"), ("a=b,a=c", "repeats")],
)
def test_a_wrong_setting_is_refused(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        parse_aliases(text)


async def test_names_reach_models() -> None:
    now, fleet = [0.0], Fleet("small", "other")
    aliases = ModelAliases(
        parse_aliases("gpt-4o=small,claude-*=a/b,*=small"), fleet.list_names, lambda: now[0]
    )
    assert [await aliases.real_name(name) for name in ("gpt-4o", "small", "a/b")] == ["small", "small", "a/b"]
    assert fleet.asked == 0
    assert await aliases.real_name("other") == "other"
    assert await aliases.real_name("claude-opus") == "a/b"
    assert await aliases.real_name("anything") == "small"
    assert fleet.asked == 1
    fleet.names, now[0] = ["small", "new"], 2.0
    assert await aliases.real_name("new") == "new"
    assert await aliases.real_name("other") == "other"  # it has been served: it may come back


async def test_calls_that_come_while_the_fleet_is_asked_wait_for_its_answer() -> None:
    asked, answers = asyncio.Event(), asyncio.Event()

    async def list_names() -> list[str]:
        asked.set()
        await answers.wait()
        return ["new"]

    aliases = ModelAliases(parse_aliases("*=small"), list_names)
    first = asyncio.create_task(aliases.real_name("new"))
    await asked.wait()
    second = asyncio.create_task(aliases.real_name("new"))
    await asyncio.sleep(0)
    answers.set()
    assert [await first, await second] == ["new", "new"]


async def test_without_patterns_or_a_router_a_name_stays() -> None:
    fleet = Fleet()
    assert await ModelAliases({"a": "b"}, fleet.list_names).real_name("c") == "c"
    assert fleet.asked == 0
    fleet.away = True
    assert await ModelAliases({"*": "b"}, fleet.list_names).real_name("c") == "c"


def unread() -> tuple[AdapterRegister, AdapterNames]:
    register = AdapterRegister()
    return register, AdapterNames(register, {"gpt": "small"})


async def test_the_name_of_an_adapter_waits_until_the_register_is_read() -> None:
    """As just after the start; models do not wait for it."""
    register, names = unread()
    fleet = Fleet("small")
    aliases = ModelAliases({"gpt": "small"}, fleet.list_names, adapters=names)
    assert [await aliases.real_name(name) for name in ("small", "gpt")] == ["small", "small"]
    waiting = [asyncio.create_task(aliases.real_name(name)) for name in ("fr", "gpt:fr", "nothing")]
    await asyncio.sleep(0.1)
    assert not any(one.done() for one in waiting)
    adapter = Adapter(name="fr", base="small", source="/x", fingerprint="a" * 32, rank=8, num_bytes=10)
    register.replace_all([adapter], 1)
    assert await asyncio.gather(*waiting) == ["small:fr", "small:fr", "nothing"]


async def test_without_a_router_nothing_waits_for_the_register() -> None:
    fleet = Fleet("small")
    fleet.away = True
    aliases = ModelAliases({}, fleet.list_names, adapters=unread()[1])
    async with asyncio.timeout(REGISTER_WAIT_S / 2):
        assert await aliases.real_name("fr") == "fr"


@pytest.mark.parametrize("pattern", [False, True])
async def test_the_wait_for_the_register_is_bounded(pattern: bool) -> None:
    """All requests together wait once; what is still not known then is said, or left to routers."""
    now, fleet = [0.0], Fleet("small")
    aliases = ModelAliases(
        {"*": "small"} if pattern else {}, fleet.list_names, lambda: now[0], adapters=unread()[1]
    )
    waiting = asyncio.create_task(aliases.real_name("fr"))
    await asyncio.sleep(0.1)
    assert not waiting.done()
    now[0] = REGISTER_WAIT_S
    assert await waiting == ("small" if pattern else "fr")
    async with asyncio.timeout(REGISTER_WAIT_S / 2):  # which no later request waits for
        assert await aliases.real_name("small:fr") == ("small" if pattern else "small:fr")
