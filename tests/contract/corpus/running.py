"""Runs the tables on a stack."""

import asyncio
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, field

from tests.contract.corpus.exchange import Exchange, Heard, Table, key_of
from tests.contract.corpus.masks import mask_lines
from tests.contract.corpus.recorded_files import Recorded
from tests.contract.corpus.stack import CorpusStack

SIDE_BY_SIDE = 8  # exchanges; many of them wait for a time limit


@dataclass
class Runs:
    """What came, by table and exchange.

    Attributes:
        raw: Before masks.
        seconds: How long each exchange took, by table and exchange.
    """

    raw: dict[str, Recorded] = field(default_factory=dict)
    seconds: dict[str, dict[str, float]] = field(default_factory=dict)

    def masked(self, name: str) -> Recorded:
        """A table as it is recorded."""
        return {exchange: mask_lines(lines).lines for exchange, lines in self.raw[name].items()}


async def run_tables(stack: CorpusStack, tables: Sequence[Table]) -> Runs:
    """Runs tables side by side, and the exchanges of each one as the table says."""
    runs = Runs()
    slots = asyncio.Semaphore(SIDE_BY_SIDE)
    clock = asyncio.get_running_loop().time

    async def run(table: Table, exchange: Exchange) -> None:
        async with slots:
            began = clock()
            runs.raw[table.name][exchange.name] = await _exchange(stack, exchange)
            runs.seconds[table.name][exchange.name] = clock() - began

    async def run_in_order(table: Table) -> None:
        for exchange in table.exchanges:
            await run(table, exchange)

    async with asyncio.TaskGroup() as group:
        for table in tables:
            runs.raw[table.name] = {exchange.name: [] for exchange in table.exchanges}
            runs.seconds[table.name] = {}
            if table.side_by_side:
                for exchange in table.exchanges:
                    group.create_task(run(table, exchange))
            else:
                group.create_task(run_in_order(table))
    return runs


async def _exchange(stack: CorpusStack, exchange: Exchange) -> list[str]:
    heard: list[Heard] = []
    lines: list[str] = []
    try:
        for step in exchange.steps:
            request = step(heard) if callable(step) else step
            key = key_of(exchange.tenant)
            heard.append(await request.send(stack.gateways[request.gateway], key))
            lines += heard[-1].lines
    except Exception:  # an exchange that fails is a difference like any other, and the others go on
        lines += ["! " + line for line in traceback.format_exc().splitlines()[-1:]]
    return lines
