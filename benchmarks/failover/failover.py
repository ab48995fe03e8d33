"""Kills or freezes ranks and leaders under streams, and checks that every stream is whole.

Two groups compute a model. As soon as both are ready and have streams again, a random rank or leader is
killed, or a leader is frozen for a while. A time without faults afterwards counts false alarms.
"""

import asyncio
import gc
from contextlib import AsyncExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from msgspec.structs import replace

from benchmarks.adapters.loaded import load_adapters
from benchmarks.failover.fault_injection import inject_faults
from benchmarks.failover.figures import InjectedFault, figures
from benchmarks.failover.fleet import FleetProbe
from benchmarks.failover.streams import Readers, Reading, make_requests, read_once, same_answer
from benchmarks.failover.structured_requests import judge_answers, make_structured_requests
from benchmarks.lib.measuring import BenchError, Progress
from benchmarks.lib.stack import RunningStack
from benchmarks.stack_plans import FailoverPlan
from shared.bus.nats import NatsBus
from shared.client import ClientSettings, Completion, InferenceClient
from shared.messages import GenerateRequest

_STREAM_S = 300.0  # a stream takes seconds; on a machine that others use as well, up to a minute
_MAX_LOSSES = 100  # of one stream: a group is killed every few seconds here


async def measure(stack: RunningStack, plan: FailoverPlan, progress: Progress) -> dict[str, Any]:
    """Kill or freeze members of a stack of two groups, and return `figures` with the client's counts.

    If the stack does not come back after a fault, `gave_up` has the reason and the figures are those of the
    faults before; else it is empty.

    Raises:
        BenchError: The stack does not answer twice the same without any fault.
    """
    async with AsyncExitStack() as cleanup:

        async def connect(user: str) -> NatsBus:
            bus = await NatsBus.connect(stack.nats_urls[user], name="bench", local=True)
            cleanup.push_async_callback(bus.close)
            return bus

        client = InferenceClient(await connect("gateway"), ClientSettings(max_losses=_MAX_LOSSES))
        fleet = FleetProbe(await connect("router"), await connect("cli"))
        await client.start()
        cleanup.push_async_callback(client.close)
        await fleet.listen()
        chat = all(card.chat for card in await client.list_models() if card.name == stack.model)
        if plan.structured and not chat:
            raise BenchError(f"{stack.model} has no chat template, and `--structured` has tool calls")
        if plan.structured:
            requests = make_structured_requests(stack.model, plan.streams, plan.tokens)
        else:
            requests = make_requests(stack.model, plan.streams, plan.tokens, chat=chat)
        if plan.adapters:
            folder = cleanup.enter_context(TemporaryDirectory(prefix="ryz-adapters-"))
            assert plan.model is not None  # its files say what shape adapters have
            adapters = await load_adapters(fleet.asks, stack.model, plan.model, plan.adapters, Path(folder))
            models = [stack.model, *(adapter.model for adapter in adapters)]
            requests = [
                replace(request, model=models[number % len(models)])
                for number, request in enumerate(requests)
            ]
        progress("without faults")
        expected, calm = await _undisturbed(client, requests)
        validity = judge_answers(requests, expected) if plan.structured else None
        gc.collect()
        gc.freeze()  # later collections look only at what is made from here on
        cleanup.callback(gc.unfreeze)
        readers = Readers(client, requests, expected, _STREAM_S)
        faults = list[InjectedFault]()
        gave_up = await inject_faults(fleet, plan, faults, progress, readers.describe)
        before = client.stats.lost
        if plan.calm and not gave_up:
            progress(f"{plan.calm:g} s without faults")
            await asyncio.sleep(plan.calm)
        false_alarms = client.stats.lost - before
        await readers.stop(_STREAM_S + 5)
        names = ("lost", "resumed", "refused", "republished", "gaps", "resends", "ignored")
        return {
            "gave_up": gave_up,
            **figures(faults, readers, calm),
            "without_faults": {"seconds": plan.calm, "streams_moved": false_alarms},
            "client": {name: getattr(client.stats, name) for name in names},
            "concurrency": plan.streams,
            "tokens": plan.tokens,
            "freezes": plan.freeze,
            "validity": validity,
        }


async def _undisturbed(
    client: InferenceClient, requests: list[GenerateRequest]
) -> tuple[list[Completion], list[Reading]]:
    """Return the right answers, by two runs that agree, and the second run's readings."""
    first: list[Completion] = []
    while True:
        outcomes = await asyncio.gather(
            *(read_once(client, one, n, _STREAM_S) for n, one in enumerate(requests))
        )
        answers = [one.answer for one in outcomes if one.answer is not None]
        if len(answers) < len(outcomes):
            raise BenchError(next(one.error for one in outcomes if one.answer is None))
        if first and not all(same_answer(a, b) for a, b in zip(first, answers, strict=True)):
            raise BenchError("the same requests got other answers without any fault")
        if first:
            return answers, outcomes
        first = answers
