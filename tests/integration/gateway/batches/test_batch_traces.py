"""Each request of a batch is a trace of its own, from the gateway that ran it to the leader."""

from pathlib import Path

from tests.integration.gateway.batches.test_batches_openai import ended, submitted
from tests.kits.gateway.batch_stack import batch_gateway, chat_lines, null_leader
from tests.kits.servers import NatsServer
from tests.kits.spans import KeptSpans, covered
from tests.kits.waiting import until


async def test_each_line_has_one_trace_that_covers_its_time(broker: NatsServer, tmp_path: Path) -> None:
    kept = KeptSpans()
    async with (
        null_leader(broker.url, delay_s=0.01, spans=kept),
        batch_gateway(broker.url, tmp_path / "files", spans=kept, trace_ratio=1.0) as gateway,
    ):
        client = gateway.client()
        batch = await submitted(client, chat_lines(3, max_tokens=20))
        assert (await ended(client, batch.id)).status == "completed"
        await until(lambda: len([span for span in kept.made if span.name == "chat demo"]) == 3)
        await until(lambda: len([span for span in kept.made if span.name == "generate demo"]) == 3)
    roots = [span for span in kept.made if span.name == "chat demo"]
    assert len({root.trace_id for root in roots}) == 3
    for root in roots:
        mine = [span for span in kept.made if span.trace_id == root.trace_id]
        by_id = {span.span_id for span in mine}
        assert (root.parent_id, root.error) == ("", "")
        assert all(span.parent_id in by_id for span in mine if span is not root)
        assert {"attempt 0", "generate demo", "prefill", "decode", "step"} <= {span.name for span in mine}
        above = {span.parent_id for span in mine}
        leaves = [span for span in mine if span.span_id not in above or span.name == "decode"]
        assert covered(root.begin_ns, root.end_ns, [(span.begin_ns, span.end_ns) for span in leaves]) >= 0.98
