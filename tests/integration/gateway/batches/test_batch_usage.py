"""Lines of a batch are in the sums of usage once, though a gateway stops and the broker is killed."""

import asyncio
from contextlib import suppress
from pathlib import Path

from prometheus_client import CollectorRegistry

from services.kvstate.usage.metrics import UsageMetrics
from services.kvstate.usage.roller import UsageRoller
from services.kvstate.usage.streams import UsageStreams
from services.kvstate.usage.sums import UsageSums
from shared.accounts.register import AccountRegister
from shared.bus.jetstream.jetstream import JetStream
from shared.bus.nats import NatsBus
from shared.errors import RyzError
from tests.integration.gateway.batches.test_batches_openai import ended, lines_of, submitted, when
from tests.kits.gateway.batch_stack import batch_gateway, chat_lines, null_leader
from tests.kits.servers import NatsServer
from tests.kits.waiting import until

LINES, TOKENS = 150, 4


async def always() -> bool:
    return True


async def test_each_line_counts_once(broker: NatsServer, tmp_path: Path) -> None:
    bus = await NatsBus.connect(broker.url, name="kvstate")
    sums = UsageSums()
    streams = UsageStreams(JetStream(bus), 400)
    await streams.ensure()
    metrics = UsageMetrics(CollectorRegistry())
    roller = UsageRoller(streams, sums, AccountRegister(), metrics, keep_days=400)
    rolling = asyncio.create_task(roller.run_forever(lambda: bus.restored_at, always))

    async def streams_again() -> bool:
        with suppress(RyzError):
            await streams.position()
            return True
        return False

    folder = tmp_path / "files"
    try:
        async with null_leader(broker.url, delay_s=0.005) as seen:
            async with batch_gateway(broker.url, folder, instance_id="one", files_store="nats") as first:
                batch = await submitted(first.client(), chat_lines(LINES, max_tokens=TOKENS))
                await when(first.client(), batch.id, lambda batch: batch.request_counts.completed > 20)
            async with batch_gateway(broker.url, folder, instance_id="two", files_store="nats") as second:
                client = second.client()
                await when(client, batch.id, lambda batch: batch.request_counts.completed > 60)
                before = second.bus.restored_at
                broker.stop(kill=True)
                broker.start()
                await until(lambda: second.bus.restored_at != before)
                await until(streams_again, longest_s=0.1)
                done = await ended(client, batch.id)
                answers = await lines_of(client, done.output_file_id)
            said = [answer["response"]["body"]["usage"] for answer in answers]
            prompts = sum(usage["prompt_tokens"] for usage in said)
            assert (len(said), sum(usage["completion_tokens"] for usage in said)) == (LINES, LINES * TOKENS)

            def counted() -> tuple[int, int, int]:
                found = sums.page("", "", "", "")[0]
                return (
                    sum(one.requests for one in found),
                    sum(one.prompt_tokens for one in found),
                    sum(one.completion_tokens for one in found),
                )

            await until(lambda: counted() == (LINES, prompts, LINES * TOKENS))
            assert len(seen) >= LINES
    finally:
        rolling.cancel()
        await asyncio.gather(rolling, return_exceptions=True)
        await bus.close()
