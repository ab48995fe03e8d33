"""`InferenceClient` over a real broker that is killed and restarted in the middle of a stream."""

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

from shared.bus.nats import NatsBus
from shared.client import InferenceClient
from shared.identity import new_request_id
from shared.messages import GenerateRequest
from tests.kits.client import client_settings
from tests.kits.servers import NatsServer
from tests.kits.waiting import PATIENCE_S, until
from tests.kits.worker.scripted_leader import ScriptedLeader, answer

SETTINGS = client_settings(probe_interval_s=0.2, resend_timeout_s=0.3)


async def test_a_stream_survives_the_death_of_the_broker(tmp_path: Path) -> None:
    server = NatsServer(tmp_path)
    server.start()
    async with AsyncExitStack() as stack:
        stack.callback(server.stop)
        ours = await NatsBus.connect(server.url, name="caller")
        stack.push_async_callback(ours.close)
        theirs = await NatsBus.connect(server.url, name="leader")
        stack.push_async_callback(theirs.close)
        leader = ScriptedLeader(theirs)
        leader.lose = set(range(3, 10))  # sent while the broker is down
        leader.script = lambda request: answer(request, 8)
        await leader.start()
        client = InferenceClient(ours, SETTINGS)
        await client.start()
        stack.push_async_callback(client.close)

        request = GenerateRequest(request_id=new_request_id(), model="demo", prompt="hello")
        async with client.submit(request, timeout_s=PATIENCE_S) as stream:
            texts = [(await anext(stream))[0].text, (await anext(stream))[0].text]
            server.stop(kill=True)
            await until(lambda: not ours.connected and not theirs.connected)
            await asyncio.sleep(0.5)
            assert not stream.finished
            server.start()
            async for deltas in stream:
                texts += [delta.text for delta in deltas]
        assert texts == [f"w{n} " for n in range(8)]
        assert len(leader.requests) == 1


async def test_two_hundred_streams_at_once(nats_url: str) -> None:
    async with AsyncExitStack() as stack:
        ours = await NatsBus.connect(nats_url, name="caller")
        stack.push_async_callback(ours.close)
        theirs = await NatsBus.connect(nats_url, name="leader")
        stack.push_async_callback(theirs.close)
        leader = ScriptedLeader(theirs)
        leader.pause_s = 0.02
        await leader.start()
        client = InferenceClient(ours, SETTINGS)
        await client.start()
        stack.push_async_callback(client.close)

        left = set()

        async def one(number: int) -> str:
            request = GenerateRequest(request_id=new_request_id(), model="demo", prompt=str(number))
            async with client.submit(request, timeout_s=PATIENCE_S) as stream:
                if number % 3 == 0:  # a third of the callers leave early
                    await anext(stream)
                    if not stream.finished:
                        left.add(request.request_id)
                    return ""
                return "".join([delta.text async for deltas in stream for delta in deltas])

        texts = await asyncio.gather(*(one(number) for number in range(200)))
        assert texts == ["" if number % 3 == 0 else "w0 w1 w2 w3 " for number in range(200)]
        assert client.num_open == 0
        assert left
        await until(lambda: left <= {cancel.request_id for cancel in leader.cancels})
