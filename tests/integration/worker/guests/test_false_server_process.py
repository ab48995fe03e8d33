"""The false server in a process of its own, as tests of whole stacks use it."""

import subprocess
import sys
from collections.abc import Iterator

import httpx
import pytest

from services.worker.guests.remote.guest import RemoteGuest
from services.worker.guests.remote.options import RemoteOptions
from services.worker.null.model import ByteTokenizer
from tests.kits.guests.guest_runs import GuestRun, guest_sequence


@pytest.fixture
def url() -> Iterator[str]:
    command = [sys.executable, "-m", "tests.kits.guests.false_server", "--style", "llama.cpp"]
    with subprocess.Popen(command, text=True, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        yield f"http://127.0.0.1:{process.stdout.readline().strip()}"
        process.kill()


async def test_it_acts_as_told_and_dies_in_the_middle_of_a_stream(url: str) -> None:
    guest = RemoteGuest(RemoteOptions(url=url, model="demo"), tokenizer=ByteTokenizer())
    run = GuestRun(guest)
    await guest.start()
    try:
        async with httpx.AsyncClient() as client:
            await client.post(f"{url}/behave", json={"name": "cut", "after": 5, "times": 1})
            assert len((await run.run(guest_sequence([1]))).sampled) == 5
            await client.post(f"{url}/behave", json={"name": "slow"})
            number = run.open(guest_sequence([1], max_tokens=1000))
            await run.until(lambda: len(run.brought[number].sampled) > 3)
            with pytest.raises(httpx.HTTPError):
                await client.post(f"{url}/die", json={})
        assert "cannot be reached" in await run.failure()
    finally:
        await guest.stop()
