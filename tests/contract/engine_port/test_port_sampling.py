"""What engines promise about what they sample: ends, choices, log probabilities, and what they declare."""

import itertools
from typing import Any, cast, get_args

import pytest

from services.worker.guests.abilities import can_do
from services.worker.guests.kv_events.contents import VllmContents
from services.worker.guests.port import Ability
from shared.client.kv_events import block_names
from shared.messages import KVFollowed
from tests.contract.engine_port.conftest import Port
from tests.contract.engine_port.engines import having, lacking
from tests.kits.waiting import until
from tests.kits.worker.toy_constraint import ToyConstraint

pytestmark = pytest.mark.asyncio(loop_scope="package")  # in which engines that are kept live
FOLLOWED: dict[str, Any] = {"group": "g", "model": "m", "epoch": "e", "seq": 0, "lease_ms": 0, "held": 0}
FREE = {"temperature": 1.0}  # samples; needs a seed


@having("guest")
async def test_what_a_guest_says_it_can_do_is_what_the_suite_tries(port: Port) -> None:
    assert port.info.guest is not None
    said = set(can_do(port.info.guest))
    assert said - {"deterministic"} == port.declared & set(get_args(Ability)) - {"deterministic"}


@having("deterministic")
async def test_choices_of_a_greedy_answer_are_equal(port: Port) -> None:
    choices = [port.run.add(port.prompt, 8, choice=choice) for choice in range(3)]
    await port.run.finish()
    answers = {tuple(port.run.came(one).tokens) for one in choices}
    assert [len(one) for one in answers] == [8]


@having("deterministic")
@pytest.mark.parametrize("how", ["eos", "stop token"])
async def test_an_answer_ends_with_its_end_token(port: Port, how: str) -> None:
    said = (await port.greedy()).tokens
    end = said[5]
    expected = said[: said.index(end) + 1]
    options = {"eos_ids": frozenset([end])} if how == "eos" else {"stop_token_ids": [end]}
    ended = await port.run.generate(port.prompt, 12, **options)
    assert (ended.tokens, ended.reason) == (expected, "stop")


@having("deterministic")
async def test_an_end_token_that_is_to_be_ignored_is_said(port: Port) -> None:
    said = (await port.greedy()).tokens
    ended = await port.run.generate(port.prompt, 12, eos_ids=frozenset([said[3]]), ignore_eos=True)
    assert (ended.tokens, ended.reason) == (said, "length")


@having("deterministic")
async def test_no_end_token_comes_before_the_least_length(port: Port) -> None:
    said = (await port.greedy()).tokens
    ended = await port.run.generate(port.prompt, 12, eos_ids=frozenset([said[2]]), min_tokens=6)
    assert len(ended.tokens) >= 6
    assert said[2] not in ended.tokens[:6]


@having("continuation", "deterministic")
@pytest.mark.parametrize("cut", [1, 5, 11])
async def test_an_answer_goes_on_behind_the_tokens_that_another_engine_gave(port: Port, cut: int) -> None:
    said = (await port.greedy()).tokens
    rest = await port.run.generate(port.prompt, 12, before=said[:cut])
    assert (rest.tokens, rest.reason) == (said[cut:], "length")


@having("logprobs")
@pytest.mark.parametrize("count", [0, 3])
async def test_log_probabilities_come_with_each_token(port: Port, count: int) -> None:
    ended = await port.run.generate(port.prompt, 6, logprobs=count)
    for one in ended.sampled:
        assert one.logprob <= 0.0
        assert bool(one.top) == bool(count)
        assert len(one.top) <= count
        pairs = itertools.pairwise(one.top)
        assert all(left.logprob >= right.logprob for left, right in pairs)
        if one.top:
            assert (one.top[0].token_id, one.top[0].logprob) == (one.token_id, one.logprob)  # it is greedy


@having("logit_bias")
async def test_a_bias_decides(port: Port) -> None:
    chosen = port.prompt[7]
    ended = await port.run.generate(port.prompt, 5, logit_bias={chosen: 100.0})
    assert ended.tokens == [chosen] * 5


@having("seed", "model")
async def test_a_seed_decides_what_is_sampled(port: Port) -> None:
    first = (await port.run.generate(port.prompt, 12, seed=1, **FREE)).tokens
    assert (await port.run.generate(port.prompt, 12, seed=1, **FREE)).tokens == first
    assert (await port.run.generate(port.prompt, 12, seed=2, **FREE)).tokens != first
    assert (await port.run.generate(port.prompt, 12, seed=1, choice=1, **FREE)).tokens != first


@having("seed", "model", "rebuilt")
async def test_a_seed_goes_on_behind_tokens_that_another_engine_gave(port: Port) -> None:
    first = (await port.run.generate(port.prompt, 12, seed=1, **FREE)).tokens
    rest = await port.run.generate(port.prompt, 12, before=first[:5], seed=1, **FREE)
    assert rest.tokens == first[5:]


@having("top_k")
async def test_the_best_of_one_token_is_the_greedy_one(port: Port) -> None:
    said = (await port.greedy()).tokens
    assert (await port.run.generate(port.prompt, 12, seed=1, top_k=1, **FREE)).tokens == said


@having("min_p")
async def test_what_is_as_probable_as_the_best_is_the_best(port: Port) -> None:
    said = (await port.greedy()).tokens
    assert (await port.run.generate(port.prompt, 12, seed=1, min_p=1.0, **FREE)).tokens == said


@having("penalties", "model")
@pytest.mark.parametrize("penalty", ["presence_penalty", "frequency_penalty"])
async def test_a_penalty_holds_tokens_back(port: Port, penalty: str) -> None:
    await _held_back(port, {penalty: 2.0})


@having("penalties", "model", "rebuilt")
@pytest.mark.parametrize("penalty", ["presence_penalty", "frequency_penalty"])
async def test_a_penalty_is_rebuilt_from_the_tokens(port: Port, penalty: str) -> None:
    await _check_rebuilt(port, {penalty: 2.0})


@having("repetition_penalty", "model")
async def test_a_penalty_for_repetitions_is_rebuilt_from_the_tokens(port: Port) -> None:
    await _held_back(port, {"repetition_penalty": 1.8})
    await _check_rebuilt(port, {"repetition_penalty": 1.8})


async def _held_back(port: Port, sampling: dict[str, float]) -> None:
    plain = (await port.greedy(24)).tokens
    held = (await port.run.generate(port.prompt, 24, **sampling)).tokens
    assert held != plain
    assert len(set(held)) >= len(set(plain))


async def _check_rebuilt(port: Port, sampling: dict[str, float]) -> None:
    held = (await port.run.generate(port.prompt, 24, **sampling)).tokens
    rest = await port.run.generate(port.prompt, 24, before=held[:7], **sampling)
    assert rest.tokens == held[7:]


@having("masks")
async def test_masks_limit_what_is_sampled(port: Port) -> None:
    constraint = ToyConstraint(port.info.vocab_size, [1], 3, longest=12, forces=False)
    ended = await port.run.generate(port.prompt, 20, eos_ids=frozenset([1]), constraint=constraint)
    assert ended.reason == "stop"
    assert ended.tokens == constraint.accepted + [1] * (ended.tokens != constraint.accepted)


@lacking("masks")
async def test_an_engine_that_takes_no_masks_refuses_them_by_name(port: Port) -> None:
    constraint = ToyConstraint(port.info.vocab_size, [1], 3, longest=12, forces=False)
    other = port.run.add(port.prompt, 4)
    ended = await port.run.generate(port.prompt, 20, constraint=constraint)
    assert (ended.reason, ended.tokens, "masks" in ended.error) == ("error", [], True)
    assert len(port.run.came(other).tokens) == 4


@having("kv_events")
async def test_events_of_its_cache_say_what_it_finds_there(port: Port) -> None:
    contents: VllmContents = cast(Any, port.engine).kv.contents
    naming = contents.naming()
    prompt = [port.prompt[0] + number for number in range(2 * naming.block_tokens + 5)]

    def known(tenant: str) -> int:
        """How many leading tokens of a tenant's prompt are in the cache, by its events."""
        names = block_names(KVFollowed(**FOLLOWED, **naming._asdict()), prompt, tenant)
        return naming.block_tokens * len(set(names) & set(contents.names()))

    async def ask(tenant: str, found: int) -> None:
        await until(lambda: known(tenant) == found)
        one = port.run.add(prompt, 2, tenant=tenant)
        await port.run.finish()
        assert port.run.came(one).sampled[0].cached_tokens == found

    for tenant in ("a", "b"):  # tenants share no blocks
        await ask(tenant, 0)
        await ask(tenant, len(prompt) - 5)
