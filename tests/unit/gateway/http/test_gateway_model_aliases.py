"""Other names of models: what the setting may say, and when a pattern is used."""

import asyncio

import pytest

from services.gateway.answering.intake.model_aliases import ModelAliases, parse_aliases
from shared.errors import Unavailable


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
