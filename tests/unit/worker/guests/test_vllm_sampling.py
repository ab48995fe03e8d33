"""What vLLM is asked for a sequence, and what it is not asked."""

from typing import Any

import msgspec
import pytest

from services.worker.guests.vllm.sampling import vllm_sampling, why_refused
from tests.kits.guests.vllm_guest import sequence

VOCAB = 100


def fields(**given: Any) -> dict[str, Any]:
    return vllm_sampling(sequence(1, [1, 2, 3], 10, **given), VOCAB)


def test_what_has_the_same_name_means_the_same() -> None:
    given = {
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 7,
        "min_p": 0.1,
        "repetition_penalty": 1.2,
        "presence_penalty": 0.3,
        "frequency_penalty": -0.4,
    }
    found = fields(**given)
    assert {name: found[name] for name in given} == given
    assert found["max_tokens"] == 10


def test_the_leader_names_the_tokens_that_end_a_sequence() -> None:
    found = fields(eos_ids=[5, 2], stop_token_ids=[9, 5])
    assert (found["ignore_eos"], found["stop_token_ids"]) == (True, [2, 5, 9])


def test_ignored_ends_are_no_ends_and_stop_tokens_are() -> None:
    assert fields(eos_ids=[5, 2], stop_token_ids=[9], ignore_eos=True)["stop_token_ids"] == [9]


def test_tokens_that_the_model_has_not_are_left_out() -> None:
    found = fields(eos_ids=[VOCAB], stop_token_ids=[VOCAB - 1], logit_bias={VOCAB: 5.0, 3: -1.0})
    assert (found["stop_token_ids"], found["logit_bias"]) == ([VOCAB - 1], {3: -1.0})
    assert "logit_bias" not in fields(logit_bias={VOCAB: 5.0})


def test_tokens_so_far_count_for_the_least_length() -> None:
    assert fields(min_tokens=6)["min_tokens"] == 6
    assert fields(min_tokens=6, so_far=[7, 8])["min_tokens"] == 4
    assert fields(min_tokens=2, so_far=[7, 8, 9])["min_tokens"] == 0
    assert fields(min_tokens=60)["min_tokens"] == 10  # vLLM takes no more than max_tokens


def test_log_probabilities_only_if_they_are_wanted() -> None:
    assert "logprobs" not in fields()
    assert fields(logprobs=0)["logprobs"] == 0
    assert fields(logprobs=4)["logprobs"] == 4


def test_seeds_differ_between_choices_and_after_a_resumption() -> None:
    def seed(choice: int = 0, so_far: list[int] | None = None) -> int:
        given = sequence(1, [1, 2, 3], 10, temperature=1.0, seed=2**63 - 1, so_far=so_far)
        new = msgspec.structs.replace(given.new, choice=choice)
        return int(vllm_sampling(msgspec.structs.replace(given, new=new), VOCAB)["seed"])

    seeds = [seed(), seed(1), seed(so_far=[4]), seed(1, [4]), seed(so_far=[4, 5])]
    assert seeds[0] == 2**63 - 1
    assert len(set(seeds)) == len(seeds)
    assert all(0 <= one < 2**63 for one in seeds)
    assert seed(1, [4]) == seeds[3]


def test_only_a_seed_that_matters_is_handed_on() -> None:
    assert fields(temperature=1.0, seed=3, seed_given=True)["seed"] == 3
    assert "seed" not in fields(temperature=1.0, seed=3, seed_given=False)  # the gateway drew it
    assert "seed" not in fields(seed=3)  # it is greedy


@pytest.mark.parametrize("name", ["presence_penalty", "frequency_penalty"])
def test_penalties_that_count_another_engines_tokens_are_refused(name: str) -> None:
    penalty: dict[str, Any] = {name: 0.5}
    assert why_refused(sequence(1, [1], 5, **penalty)) == ""
    assert name in why_refused(sequence(1, [1], 5, so_far=[2], **penalty))
    assert why_refused(sequence(1, [1], 5, so_far=[2], repetition_penalty=1.5)) == ""
