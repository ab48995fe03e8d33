"""What a server cannot do is said by name, and what it can is sent."""

import pytest

from services.worker.guests.port import Ability, GuestSequence
from services.worker.guests.remote.demands import ask_for, unmet
from services.worker.guests.remote.wire.dialect import Ask
from services.worker.rank_protocol.engine_sampling import EngineSampling
from tests.kits.guests.guest_runs import guest_sequence

EVERYTHING: frozenset[Ability] = frozenset(
    {
        "adapters",
        "ignore_eos",
        "logit_bias",
        "logprobs",
        "min_p",
        "min_tokens",
        "penalties",
        "prompt_logprobs",
        "repetition_penalty",
        "seed",
        "token_ids_in",
        "token_ids_out",
        "top_k",
    }
)


@pytest.mark.parametrize(
    ("sampling", "ability"),
    [
        (EngineSampling(ignore_eos=True), "ignore_eos"),
        (EngineSampling(logit_bias={1: 1.0}), "logit_bias"),
        (EngineSampling(logprobs=0), "logprobs"),
        (EngineSampling(min_p=0.1), "min_p"),
        (EngineSampling(min_tokens=1), "min_tokens"),
        (EngineSampling(presence_penalty=0.1), "penalties"),
        (EngineSampling(frequency_penalty=-0.1), "penalties"),
        (EngineSampling(prompt_logprobs=0), "prompt_logprobs"),
        (EngineSampling(repetition_penalty=1.1), "repetition_penalty"),
        (EngineSampling(stop_token_ids=[5]), "token_ids_out"),
        (EngineSampling(top_k=5), "top_k"),
    ],
)
def test_each_demand_has_its_ability(sampling: EngineSampling, ability: Ability) -> None:
    sequence = guest_sequence([1], sampling=sampling)
    assert unmet(sequence, EVERYTHING) == ""
    assert ability in unmet(sequence, EVERYTHING - {ability})


def test_adapters_are_demanded_too() -> None:
    sequence = guest_sequence([1], adapter="law")
    assert "adapters" in unmet(sequence, EVERYTHING - {"adapters"})
    assert ask_for(sequence, "base", EVERYTHING, None).model == "law"


@pytest.mark.parametrize("sampling", [EngineSampling(presence_penalty=1.0), EngineSampling(min_tokens=5)])
def test_what_counts_tokens_of_the_answer_does_not_go_on_elsewhere(sampling: EngineSampling) -> None:
    assert unmet(guest_sequence([1], sampling=sampling), EVERYTHING) == ""
    assert "in the middle" in unmet(guest_sequence([1], generated=[2], sampling=sampling), EVERYTHING)


def test_greedy_answers_need_no_limits_of_sampling() -> None:
    assert (
        unmet(guest_sequence([1], sampling=EngineSampling(temperature=0.0, top_k=5, min_p=0.5)), frozenset())
        == ""
    )


def test_seeds_differ_by_choice_and_position_and_fit() -> None:
    def asked(sequence: GuestSequence, abilities: frozenset[Ability] = EVERYTHING) -> Ask:
        return ask_for(sequence, "m", abilities, None)

    hot = EngineSampling(seed=7)
    first = asked(guest_sequence([1], sampling=hot)).seed
    others = [
        asked(guest_sequence([1], sampling=hot, choice=1)).seed,
        asked(guest_sequence([1], sampling=hot, generated=[4])).seed,
        asked(guest_sequence([1], sampling=EngineSampling(seed=2**62))).seed,
    ]
    assert first == 7
    assert len({first, *others}) == 4
    assert all(seed is not None and 0 <= seed < 2**31 for seed in others)
    assert asked(guest_sequence([1], sampling=hot), EVERYTHING - {"seed"}).seed is None
