"""vLLM's process with a stand-in for vLLM: a real child, its own processes, sockets and signals."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from services.worker.rank_protocol.failures import EngineFailed, EngineRefused
from services.worker.rank_protocol.plan import Alternative
from tests.kits.guests.process_group import core_of, group_of, guard_of, pid_of
from tests.kits.guests.vllm_guest import Watched, sequence, stub_guest
from tests.kits.waiting import until

TELLS_SALT = 2047
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the tests look for processes in /proc")


@pytest.fixture
async def watched(tmp_path: Path) -> AsyncIterator[Watched]:
    """A guest that is ready; its steps take 2 ms."""
    watched = stub_guest(tmp_path)
    await watched.guest.start()
    yield watched
    await watched.guest.stop()


async def test_it_says_what_it_is(tmp_path: Path) -> None:
    addresses = {"endpoint": f"ipc://{tmp_path}/events", "replay_endpoint": f"ipc://{tmp_path}/replays"}
    events = f"--kv-events-config '{json.dumps({'enable_kv_cache_events': True, **addresses})}'"
    watched = stub_guest(tmp_path, f"--max-model-len 128 --max-num-seqs 4 {events}")
    facts = await watched.guest.start()
    try:
        assert (facts.name, facts.context_length, facts.vocab_size) == ("vLLM 0.0.stub", 128, 2048)
        assert (facts.max_running, facts.kv_tokens) == (4, 2048)
        assert {"logprobs", "seed", "continuation"} <= facts.abilities
        # "grammar": the model's directory has no tokenizer
        assert not {"adapters", "grammar"} & facts.abilities
        assert watched.guest.status()["kv_events"] == addresses["endpoint"]
    finally:
        await watched.guest.stop()


async def test_sequences_run_beside_each_other_and_end_as_asked(watched: Watched) -> None:
    guest = watched.guest
    guest.open(sequence(1, [10, 20], 3))
    guest.open(sequence(2, [10, 20], 9, eos_ids=[23], stop_token_ids=[300]))
    guest.open(sequence(3, [10, 20], 5, eos_ids=[22], ignore_eos=True))
    guest.open(sequence(4, [10, 20], 9, so_far=[21, 22], eos_ids=[24], min_tokens=4))
    await until(lambda: watched.has_ended(1, 2, 3, 4))
    assert (watched.tokens(1), watched.end(1)) == ([21, 22, 23], "length")
    assert (watched.tokens(2), watched.end(2)) == ([21, 22, 23], "stop")
    assert (watched.tokens(3), watched.end(3)) == ([21, 22, 23, 24, 25], "length")
    assert watched.tokens(4) == [23, 25, 26, 27, 28, 29, 30, 31, 32]  # 24 would have ended it too early


async def test_log_probabilities_are_the_chosen_tokens_and_the_likeliest(watched: Watched) -> None:
    watched.guest.open(sequence(1, [10], 1, logprobs=1, temperature=1.0))
    watched.guest.open(sequence(2, [10], 1, logprobs=3, temperature=1.0))
    watched.guest.open(sequence(3, [10], 1, logprobs=0, temperature=1.0))
    await until(lambda: watched.has_ended(1, 2, 3))
    tops = {seq_id: watched.parts[seq_id][0].sampled[0] for seq_id in (1, 2, 3)}
    assert [one.logprob for one in tops.values()] == [-1.5, -1.5, -1.5]
    assert [tuple(top) for top in _pairs(tops[1].top)] == [(12, -0.5)]
    assert [tuple(top) for top in _pairs(tops[2].top)] == [(12, -0.5), (11, -1.5), (13, -2.5)]
    assert tops[3].top == []


async def test_a_closed_sequence_brings_nothing_more_and_the_others_go_on(watched: Watched) -> None:
    guest = watched.guest
    guest.open(sequence(1, [10], 400))
    guest.open(sequence(2, [10], 40))
    await until(lambda: len(watched.tokens(1)) > 3)
    guest.close(1)
    guest.close(1)
    guest.close(77)
    count = len(watched.tokens(1))
    guest.open(sequence(3, [10], 4))
    guest.open(sequence(4, [10], 400))
    guest.close(4)  # before vLLM knows it
    await until(lambda: watched.has_ended(2, 3))
    assert (len(watched.tokens(1)), watched.end(1)) == (count, "")
    assert 4 not in watched.parts
    assert not watched.failures


@pytest.mark.parametrize(
    ("sharing", "salts"), [("tenant", [1, 5, 0]), ("all", [0, 0, 0]), ("off", [0, 0, 0])]
)
async def test_tenants_share_what_is_cached_if_they_may(
    tmp_path: Path, sharing: str, salts: list[int]
) -> None:
    arguments = "--stub-without-cache" if sharing == "off" else ""
    watched = stub_guest(tmp_path, arguments, prefix_sharing=sharing)
    await watched.guest.start()
    for seq_id, tenant in enumerate(["a", "other", ""]):
        watched.guest.open(sequence(seq_id, [10, TELLS_SALT], 1, tenant=tenant))
    await until(lambda: watched.has_ended(0, 1, 2))
    assert [watched.tokens(seq_id)[0] for seq_id in range(3)] == salts
    await watched.guest.stop()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"so_far": [11], "presence_penalty": 1.0}, "presence_penalty"),
        ({"prompt": [10] * 600}, "longer than the maximum model length"),
    ],
)
async def test_what_is_wrong_with_a_sequence_ends_that_one(
    watched: Watched, given: dict[str, Any], said: str
) -> None:
    watched.guest.open(sequence(1, **{"prompt": [10], "max_tokens": 5, **given}))
    watched.guest.open(sequence(2, [10], 5))
    await until(lambda: watched.has_ended(1, 2))
    assert said in watched.end(1)
    assert watched.end(2) == "length"
    assert not watched.failures


@pytest.mark.parametrize(
    ("victim", "number", "said"),
    [
        ("child", signal.SIGKILL, "killed by SIGKILL"),
        ("child", signal.SIGTERM, "it was ended by SIGTERM"),
        ("core", signal.SIGKILL, "its engine process is gone"),
    ],
)
async def test_a_process_that_is_killed_takes_all_others_along(
    watched: Watched, victim: str, number: signal.Signals, said: str
) -> None:
    guest, pid = watched.guest, pid_of(watched)
    guest.open(sequence(1, [10], 450))
    await until(lambda: bool(watched.tokens(1)))
    os.kill(pid if victim == "child" else core_of(pid), number)
    await until(lambda: bool(watched.failures))
    await until(lambda: not group_of(pid))
    assert [said in why for why in watched.failures] == [True]
    assert watched.end(1) == ""
    await guest.start()
    guest.open(sequence(2, [10], 3))
    await until(lambda: watched.has_ended(2))
    assert watched.tokens(2) == [11, 12, 13]


@pytest.mark.parametrize("victim", ["child", "core"])
async def test_a_process_that_hangs_is_noticed(tmp_path: Path, victim: str) -> None:
    watched = stub_guest(tmp_path, silence_s=0.5, ping_s=0.05)
    await watched.guest.start()
    pid = pid_of(watched)
    os.kill(pid if victim == "child" else core_of(pid), signal.SIGSTOP)
    await until(lambda: bool(watched.failures))
    assert "has not answered for 0.5 s" in watched.failures[0]
    await until(lambda: not group_of(pid))
    await watched.guest.stop()


async def test_an_engine_that_is_lost_while_it_is_idle_is_noticed(tmp_path: Path) -> None:
    watched = stub_guest(tmp_path, ping_s=0.05)
    await watched.guest.start()
    os.kill(core_of(pid_of(watched)), signal.SIGKILL)
    await until(lambda: bool(watched.failures))
    assert "its engine process is gone" in watched.failures[0]
    await watched.guest.stop()


async def test_stop_ends_all_processes(watched: Watched) -> None:
    pid = pid_of(watched)
    watched.guest.open(sequence(1, [10], 450))
    await watched.guest.stop()
    await until(lambda: not group_of(pid), 5.0)  # they are killed, and the kernel may not be done with them
    await watched.guest.stop()
    assert not watched.failures


@pytest.mark.parametrize("also", ["", "child", "guard"])
async def test_nothing_is_left_when_the_leader_is_killed(tmp_path: Path, also: str) -> None:
    """Also if another of the processes that would notice is killed at the same moment."""
    program = (
        "import asyncio, pathlib, sys\n"
        "from tests.kits.guests.vllm_guest import stub_guest\n"
        "async def main():\n"
        "    watched = stub_guest(pathlib.Path(sys.argv[1]))\n"
        "    await watched.guest.start()\n"
        "    print(watched.guest.status()['pid'], flush=True)\n"
        "    await asyncio.sleep(600)\n"
        "asyncio.run(main())\n"
    )
    leader = await asyncio.create_subprocess_exec(
        sys.executable, "-c", program, str(tmp_path), stdout=asyncio.subprocess.PIPE
    )
    assert leader.stdout is not None
    while not (line := (await leader.stdout.readline()).strip()).isdigit():
        assert line, "the leader ended"
    pid = int(line)
    await until(lambda: len(group_of(pid)) >= 3)
    if also:
        os.kill(pid if also == "child" else guard_of(pid), signal.SIGKILL)
    leader.kill()
    await leader.communicate()  # also closes its pipe
    await until(lambda: not group_of(pid))


@pytest.mark.parametrize(
    ("arguments", "refused", "said"),
    [
        ("--max-model-len 9999", True, "max_model_len (9999) is greater than 8192"),
        ("--max-model-len many", True, "invalid int value: 'many'"),
        ("--no-such-thing 1", True, "unrecognized arguments: --no-such-thing"),
        ("--model other", True, "RYZ_MODEL names the model"),
        ("--lora-modules a=/x", True, "a group with RYZ_ENGINE=vllm serves no adapters"),
        ("--stub-core-error 'out of memory'", False, "RuntimeError: out of memory"),
        ("--stub-write 'GET / HTTP/1.1'", False, "it sent what is no message"),
    ],
)
async def test_a_start_that_fails_says_why(tmp_path: Path, arguments: str, refused: bool, said: str) -> None:
    watched = stub_guest(tmp_path, arguments)
    with pytest.raises(EngineFailed) as caught:
        await watched.guest.start()
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
    assert isinstance(caught.value, EngineRefused) == refused
    assert caught.value.failure.kind == ("refused" if refused else "start_failed")
    assert not watched.failures


async def test_a_process_that_is_killed_while_it_loads_fails_the_start(tmp_path: Path) -> None:
    watched = stub_guest(tmp_path, "--stub-load-s 600")
    start = asyncio.ensure_future(watched.guest.start())
    await until(lambda: bool(watched.guest.status()["pid"]))
    os.kill(pid_of(watched), signal.SIGKILL)
    with pytest.raises(EngineFailed, match="vLLM does not start: killed by SIGKILL"):
        await start


async def test_a_start_that_is_cancelled_leaves_nothing(tmp_path: Path) -> None:
    watched = stub_guest(tmp_path, "--stub-load-s 600")
    start = asyncio.ensure_future(watched.guest.start())
    await until(lambda: bool(watched.guest.status()["pid"]))
    pid = pid_of(watched)
    start.cancel()
    with pytest.raises(asyncio.CancelledError):
        await start
    await until(lambda: not group_of(pid), 5.0)


@pytest.mark.parametrize(
    ("python", "said"),
    [
        ("", "set RYZ_VLLM_PYTHON"),
        ("/no/such/python", "cannot be run: No such file"),
        (sys.executable, "import vLLM"),
    ],
)
async def test_an_interpreter_without_vllm_is_refused(tmp_path: Path, python: str, said: str) -> None:
    guest = stub_guest(tmp_path, vllm_python=python).guest
    with pytest.raises(EngineRefused, match=said):
        await guest.start()


def _pairs(top: list[Alternative]) -> list[tuple[int, float]]:
    return [(one.token_id, one.logprob) for one in top]
