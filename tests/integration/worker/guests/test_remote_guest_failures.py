"""A server that is gone is noticed, and what is closed brings nothing more."""

import pytest

from services.worker.rank_protocol.failures import EngineFailed, EngineRefused
from tests.integration.worker.guests.conftest import StartGuest, StartServer
from tests.kits.guests.guest_runs import guest_sequence
from tests.kits.tls import Authority
from tests.kits.waiting import until

PROMPT = list(b"Once upon a time")


async def test_the_end_of_the_server_is_a_failure(start_server: StartServer, start_guest: StartGuest) -> None:
    server = await start_server("vllm")
    run = await start_guest(server)
    server.behave("slow")
    number = run.open(guest_sequence(PROMPT, max_tokens=500))
    await run.until(lambda: len(run.brought[number].sampled) > 3)
    server.drop_all()
    assert "cannot be reached" in await run.failure()
    assert run.guest.status()["state"] == "failed"
    brought = run.brought[number]
    assert brought.num_ends <= 1
    assert brought.token_ids == server.voice.next_tokens(len(PROMPT), len(brought.token_ids))
    before = len(brought.sampled)
    run.guest.open(guest_sequence(PROMPT))
    assert (len(run.failures), len(brought.sampled)) == (1, before)


async def test_an_idle_server_is_watched(start_server: StartServer, start_guest: StartGuest) -> None:
    server = await start_server("text")
    run = await start_guest(server, health_interval_s=0.02)
    server.healthy = False
    assert "health check" in await run.failure()


async def test_a_server_that_answers_no_check_is_gone(
    start_server: StartServer, start_guest: StartGuest
) -> None:
    server = await start_server("vllm")
    run = await start_guest(server, health_interval_s=0.02, health_timeout_s=0.1)
    server.hung = True
    assert "did not answer in time" in await run.failure()
    assert server.seen["/health"] >= 2


async def test_a_failed_guest_starts_again(start_server: StartServer, start_guest: StartGuest) -> None:
    server = await start_server("vllm")
    run = await start_guest(server, health_interval_s=0.02)
    await server.stop()
    await run.failure()
    with pytest.raises(EngineFailed):
        await run.guest.start()
    await start_server("vllm", port=server.port)
    await run.guest.start()
    assert (await run.run(guest_sequence(PROMPT))).finished == "length"


async def test_streams_lost_in_a_row_are_a_failure(
    start_server: StartServer, start_guest: StartGuest
) -> None:
    server = await start_server("vllm")
    run = await start_guest(server, lost_in_a_row=3)
    server.behave("reset", after=0)
    for number in range(3):
        assert len(run.failures) == 0, number
        assert (await run.run(guest_sequence(PROMPT))).error
    assert "broke the connection off" in await run.failure()


async def test_tokens_between_them_show_a_server_that_lives(
    start_server: StartServer, start_guest: StartGuest
) -> None:
    server = await start_server("vllm")
    run = await start_guest(server, lost_in_a_row=2)
    server.behave("reset", after=2)
    for _ in range(4):
        assert (await run.run(guest_sequence(PROMPT))).error
    assert run.failures == []


async def test_a_closed_sequence_ends_at_the_server(
    start_server: StartServer, start_guest: StartGuest
) -> None:
    server = await start_server("vllm")
    run = await start_guest(server)
    server.behave("slow")
    number = run.open(guest_sequence(PROMPT, max_tokens=1000))
    await run.until(lambda: len(run.brought[number].sampled) > 3)
    run.guest.close(number)
    run.guest.close(number)
    before = len(run.brought[number].sampled)
    await until(lambda: not server.open_streams)
    assert (len(run.brought[number].sampled), run.brought[number].num_ends) == (before, 0)
    assert run.guest.status()["streams"] == 0


async def test_the_rest_of_a_whole_answer_is_read(start_server: StartServer, start_guest: StartGuest) -> None:
    server = await start_server("vllm")
    run = await start_guest(server)
    number = run.open(guest_sequence(PROMPT))
    await run.end_of(number)
    run.guest.close(number)  # as the leader does
    await until(lambda: not server.open_streams)
    assert server.num_left == 0


async def test_the_load_is_the_servers_own(start_server: StartServer, start_guest: StartGuest) -> None:
    server = await start_server("vllm")
    run = await start_guest(server, health_interval_s=0.01)
    await until(lambda: "server_running" in run.guest.status())
    row = run.guest.status()
    assert (row["server_running"], row["server_waiting"], row["server_kv_used"]) == (3.0, 1.0, 0.25)


async def test_certificates_are_checked(
    start_server: StartServer, start_guest: StartGuest, tmp_path_factory: pytest.TempPathFactory
) -> None:
    authority = Authority(tmp_path_factory.mktemp("tls"))
    server = await start_server("vllm", tls=authority.server_context())
    url = f"https://127.0.0.1:{server.port}/v1"
    run = await start_guest(server, url=url, ca_file=authority.ca)
    assert (await run.run(guest_sequence(PROMPT))).finished == "length"
    with pytest.raises(EngineFailed, match="name the file with its authority's certificate"):
        await start_guest(server, url=url)
    with pytest.raises(EngineRefused, match="cannot be read"):
        await start_guest(server, url=url, ca_file="/nowhere/ca.pem")
