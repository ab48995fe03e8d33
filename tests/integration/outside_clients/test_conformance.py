"""The script that checks clients: ours pass it, and what a client does wrong is found."""

import sys
from pathlib import Path

import pytest

from tests.kits.examples import EXAMPLES, run_example
from tests.kits.servers import NatsServer

LIMIT_S = 240.0  # a case takes a second, and up to a minute on a busy machine
OURS = (
    "lost-frame,lost-end,second-group,refused,no-router,cancel,lost-group,resumable,router-away,frozen-router"
)
CLIENT = ("--nats-url", "{url}", "--model", "{model}", "--prompt", "hello")


async def conformance(url: str, *command: str, only: str = "") -> tuple[int | None, str]:
    code, out, err = await run_example(
        "conformance.py", "--nats-url", url, "--only", only, "--", *command, limit_s=LIMIT_S
    )
    assert not err, err
    return code, out


@pytest.mark.timeout(2 * LIMIT_S)
async def test_it_knows_right_from_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RYZ_CLIENT_WAIT_S", "3")
    broker = NatsServer(tmp_path)
    broker.start()
    try:
        command = (sys.executable, str(EXAMPLES / "publish_with_client.py"), *CLIENT)
        code, out = await conformance(broker.url, *command, only=OURS)
        assert (code, "10 of 10 cases passed" in out) == (0, True), out
        # it does not go on at another group, and is told so
        command = (sys.executable, str(EXAMPLES / "plain_nats.py"), *CLIENT)
        code, out = await conformance(broker.url, *command, only="reversed,old-attempt,lost-group")
        wrong = [line.split()[2] for line in out.splitlines() if line.startswith("FAIL")]
        assert (code, wrong) == (1, ["old-attempt", "lost-group"]), out
    finally:
        broker.stop()
