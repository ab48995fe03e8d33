"""vLLM itself behind the guest port: its own answers, its sampling, its ends."""

import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from services.worker.rank_protocol.failures import EngineRefused
from tests.kits.guests.process_group import core_of, group_of, pid_of
from tests.kits.guests.real_vllm import ARGUMENTS, real_guest, reference_answers
from tests.kits.guests.vllm_guest import Watched, sequence
from tests.kits.waiting import until

pytestmark = [pytest.mark.guests, pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(900)]
PROMPTS = [[5 + number, 200 + 7 * number, 1000, 31, 400 + number] * (1 + number) for number in range(8)]
COUNT = 24


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def shared() -> AsyncIterator[Watched]:
    """A guest for all tests that do not end it."""
    watched = real_guest()
    await watched.guest.start()
    yield watched
    await watched.guest.stop()


@pytest.fixture
def watched(shared: Watched) -> Watched:
    shared.parts.clear()
    return shared


async def generate(watched: Watched, prompt: list[int], count: int, **options: object) -> list[int]:
    seq_id = max(watched.parts, default=0) + 100
    watched.guest.open(sequence(seq_id, prompt, count, **options))  # type: ignore[arg-type]
    await until(lambda: watched.has_ended(seq_id))
    assert watched.end(seq_id) in ("stop", "length"), watched.end(seq_id)
    return watched.tokens(seq_id)


async def test_it_answers_as_vllm_does_by_itself(watched: Watched, tmp_path: Path) -> None:
    for number, prompt in enumerate(PROMPTS):
        watched.guest.open(sequence(number, prompt, COUNT, ignore_eos=True, logprobs=3))
    await until(lambda: watched.has_ended(*range(len(PROMPTS))))
    own = reference_answers(PROMPTS, COUNT, tmp_path)
    for number, answer in enumerate(own):
        sampled = [one for part in watched.parts[number] for one in part.sampled]
        assert [one.token_id for one in sampled] == answer["tokens"]
        assert [one.logprob for one in sampled] == pytest.approx(answer["logprobs"], abs=1e-3)
        assert all(one.top[0].logprob == pytest.approx(one.logprob) for one in sampled)  # greedy
        assert {len(one.top) for one in sampled} == {3}
        assert watched.end(number) == "length"


async def test_a_sequence_goes_on_behind_given_tokens(watched: Watched) -> None:
    whole = await generate(watched, PROMPTS[2], 16, ignore_eos=True)
    rest = await generate(watched, PROMPTS[2], 11, so_far=whole[:5], ignore_eos=True)
    assert rest == whole[5:]


async def test_it_ends_by_the_tokens_that_it_was_told(watched: Watched) -> None:
    whole = await generate(watched, PROMPTS[3], 16, ignore_eos=True)
    end = whole[6]
    until_end = whole[: whole.index(end) + 1]
    assert await generate(watched, PROMPTS[3], 16, eos_ids=[end]) == until_end
    assert await generate(watched, PROMPTS[3], 16, stop_token_ids=[end], ignore_eos=True) == until_end
    longer = await generate(watched, PROMPTS[3], 16, eos_ids=[end], min_tokens=12)
    assert end not in longer[:12]
    assert len(longer) >= 12


async def test_sampling_does_what_it_says(watched: Watched) -> None:
    prompt, free = PROMPTS[1], {"temperature": 1.0, "ignore_eos": True}
    first = await generate(watched, prompt, 12, seed=7, **free)
    assert await generate(watched, prompt, 12, seed=7, **free) == first
    assert await generate(watched, prompt, 12, seed=8, **free) != first
    greedy = await generate(watched, prompt, 12, ignore_eos=True)
    assert await generate(watched, prompt, 12, seed=7, **free | {"top_k": 1}) == greedy
    assert await generate(watched, prompt, 12, seed=7, **free | {"min_p": 1.0}) == greedy
    assert await generate(watched, prompt, 5, logit_bias={77: 100.0}, ignore_eos=True) == [77] * 5
    unlike = await generate(
        watched, prompt, 24, logit_bias={77: 9.0}, repetition_penalty=10.0, ignore_eos=True
    )
    assert unlike.count(77) <= 2


async def test_what_vllm_refuses_ends_that_sequence(watched: Watched) -> None:
    watched.guest.open(sequence(1, [5] * 3000, 4))
    watched.guest.open(sequence(2, PROMPTS[0], 4, ignore_eos=True))
    await until(lambda: watched.has_ended(1, 2))
    assert "2048" in watched.end(1)
    assert (watched.end(2), len(watched.tokens(2))) == ("length", 4)
    assert not watched.failures


async def test_a_closed_sequence_makes_room_at_once() -> None:
    watched = real_guest(ARGUMENTS.replace("--max-num-seqs 16", "--max-num-seqs 1"))
    facts = await watched.guest.start()
    assert (facts.max_running, facts.context_length) == (1, 2048)
    assert facts.kv_tokens >= 2048
    for seq_id in range(1, 6):  # each would have the only slot for the whole context
        watched.guest.open(sequence(seq_id, PROMPTS[0], 2000, ignore_eos=True))
        await _begun(watched, seq_id)
        watched.guest.close(seq_id)
    watched.guest.open(sequence(9, PROMPTS[1], 4, ignore_eos=True))
    await until(lambda: watched.has_ended(9))
    assert all(len(watched.tokens(seq_id)) < 200 for seq_id in range(1, 6))
    await watched.guest.stop()


@pytest.mark.parametrize(
    ("victim", "number", "said"),
    [
        ("child", signal.SIGKILL, "killed by SIGKILL"),
        ("child", signal.SIGTERM, "ended by SIGTERM"),
        ("core", signal.SIGKILL, "its engine process is gone"),
        ("core", signal.SIGSTOP, "has not answered"),
    ],
)
async def test_a_lost_process_is_one_failure_and_another_start_works(
    victim: str, number: signal.Signals, said: str
) -> None:
    watched = real_guest()
    await watched.guest.start()
    pid = pid_of(watched)
    watched.guest.open(sequence(1, PROMPTS[0], 2000, ignore_eos=True))
    await until(lambda: len(watched.tokens(1)) > 3)
    os.kill(pid if victim == "child" else core_of(pid), number)
    await until(lambda: bool(watched.failures))
    assert [said in why for why in watched.failures] == [True]
    await until(lambda: not group_of(pid))
    await watched.guest.start()
    assert len(await generate(watched, PROMPTS[0], 4, ignore_eos=True)) == 4
    await watched.guest.stop()
    assert len(watched.failures) == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("--max-model-len 99999999", "max_model_len"),
        ("--no-such-argument 3", "--no-such-argument"),
        ("--dtype int3", "int3"),
    ],
)
async def test_arguments_that_vllm_refuses_are_named(arguments: str, said: str) -> None:
    watched = real_guest(arguments)
    with pytest.raises(EngineRefused) as caught:
        await watched.guest.start()
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


async def _begun(watched: Watched, seq_id: int) -> None:
    await until(lambda: len(watched.tokens(seq_id)) > 3)
