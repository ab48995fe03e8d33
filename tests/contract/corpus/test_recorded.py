"""Every exchange of the corpus is answered as it was recorded, byte for byte except for masks."""

import re

import pytest

from tests.contract.corpus import recorded_files
from tests.contract.corpus.masks import MASKS, mask_lines
from tests.contract.corpus.running import Runs
from tests.contract.corpus.tables.all_tables import TABLES

pytestmark = [pytest.mark.asyncio(loop_scope="package"), pytest.mark.timeout(300), pytest.mark.sources]
LEAST_EXCHANGES = 300
SHOWN = 12_000  # characters of differences in a message


@pytest.mark.parametrize("name", [one.name for one in TABLES])
async def test_answers_are_as_recorded(runs: Runs, name: str) -> None:
    found = recorded_files.differences(name, recorded_files.read(name), runs.masked(name))
    shown = "\n\n".join(found.values())[:SHOWN]
    assert not found, f"{len(found)} exchanges differ: {', '.join(found)}\n{shown}"


async def test_exchanges_are_many_and_none_of_them_failed() -> None:
    recorded = {one.name: recorded_files.read(one.name) for one in TABLES}
    assert sum(map(len, recorded.values())) >= LEAST_EXCHANGES
    lines = [line for table in recorded.values() for exchange in table.values() for line in exchange]
    assert not [line for line in lines if line.startswith("! ")]
    assert sorted(path.stem for path in recorded_files.FOLDER.glob("*.jsonl")) == sorted(recorded)
    for one in TABLES:
        assert list(recorded[one.name]) == [exchange.name for exchange in one.exchanges]


async def test_each_changed_character_outside_of_masks_is_a_difference(runs: Runs) -> None:
    """Of an exchange of each transport, with headers: nothing but what is named is left out."""
    for table, exchange in (
        ("chat", "one token"),
        ("streams", "ids without a stream"),
        ("sessions", "created without a name"),
        ("tokens", "a model"),
        ("grpc", "some outputs"),
        ("realtime", "a ping"),
        ("bus", "an embedding"),
        ("direct", "an embedding"),
    ):
        lines = runs.raw[table][exchange]
        whole = mask_lines(lines)
        for number, line in enumerate(lines):
            inside = {index for start, end in whole.spans[number] for index in range(start, end)}
            for index, letter in enumerate(line):
                if index in inside:
                    continue
                other = "y" if letter != "y" else "z"
                changed = [*lines[:number], line[:index] + other + line[index + 1 :], *lines[number + 1 :]]
                assert mask_lines(changed).lines != whole.lines, (table, exchange, line, index)


async def test_little_is_masked(runs: Runs) -> None:
    """At most a tenth of what came, all of it found by a mask that says why."""
    masked = total = 0
    for table in runs.raw.values():
        for lines in table.values():
            total += sum(map(len, lines))
            masked += sum(end - start for spans in mask_lines(lines).spans for start, end in spans)
    assert 0 < masked < total / 10
    assert all(len(mask.why) > 10 for mask in MASKS)
    assert len({mask.name for mask in MASKS}) == len(MASKS)


async def test_a_missing_and_an_added_exchange_differ() -> None:
    one, other = {"a": ["x"], "b": []}, {"a": ["x"]}
    assert set(recorded_files.differences("t", one, other)) == {"b"}
    assert set(recorded_files.differences("t", other, one)) == {"b"}
    assert recorded_files.differences("t", one, one) == {}
    assert re.search(r"^-'x'$", recorded_files.differences("t", one, {"a": ["y"], "b": []})["a"], re.M)
