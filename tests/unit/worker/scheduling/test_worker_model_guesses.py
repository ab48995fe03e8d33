"""When a draft model is asked: what its guesses may cost, by sequence and all together."""

import pytest

from services.worker.domain.scheduling.sequence import Sequence
from services.worker.domain.speculation.model_costs import EARNED, START, ModelCosts
from services.worker.domain.speculation.speculation import MAX_SEQUENCES, Speculation
from services.worker.rank_protocol.plan import StepResult
from tests.kits.worker.scheduler import make

PLAIN_S = 0.010


def decoding(name: str = "a") -> Sequence:
    """A sequence whose newest token is the next one to be computed, and whose text never repeats itself."""
    sequence = make(name, 4, 10_000)
    sequence.seq_id, sequence.announced, sequence.planned = ord(name), True, 3
    return sequence


def measured(sequences: int = 1, most: int = 4) -> Speculation:
    speculation = Speculation(most)
    speculation.book_step(sequences, StepResult(step_id=1, sampled=[], compute_s=PLAIN_S), [], alone=True)
    return speculation


def step(speculation: Speculation, sequence: Sequence, count: int, right: int) -> None:
    """A step with guesses, in which each cost a tenth of a plain step."""
    result = StepResult(step_id=1, sampled=[], compute_s=PLAIN_S * (1 + 0.1 * count))
    speculation.book_step(1, result, [(sequence.seq_id, count, right)], alone=True)
    add(sequence, 1 + right)


def add(sequence: Sequence, count: int) -> None:
    sequence.tokens += range(len(sequence.tokens) + 1000, len(sequence.tokens) + 1000 + count)
    sequence.planned = len(sequence.tokens) - 1


def asked(speculation: Speculation, sequence: Sequence) -> int:
    return sum(count for _, count in speculation.asked([sequence]))


def test_a_model_is_asked_where_the_text_gives_nothing_and_only_while_it_is_up() -> None:
    speculation, sequence = measured(), decoding()
    assert asked(speculation, sequence) == 0
    speculation.model_up = True
    add(sequence, 1)
    assert asked(speculation, sequence) > 0
    assert speculation.expects(sequence, 1)
    sequence.tokens += sequence.tokens[:3]
    sequence.planned = len(sequence.tokens) - 1
    assert speculation.drafts_of(sequence, 1) == sequence.tokens[3:4] + sequence.tokens[4:7]
    assert asked(speculation, sequence) == 0
    add(sequence, 1)
    assert asked(speculation, sequence) > 0
    speculation.refuse_model(sequence.seq_id)
    assert asked(speculation, sequence) == 0
    assert not speculation.expects(sequence, 1)
    add(sequence, 1)
    assert asked(speculation, sequence) == 0
    speculation.forget_model()
    add(sequence, 1)
    assert asked(speculation, sequence) > 0


def test_it_is_not_asked_before_a_plain_step_was_measured_and_beside_too_many() -> None:
    speculation, sequence = Speculation(4), decoding()
    speculation.model_up = True
    assert asked(speculation, sequence) == 0
    assert measured().asked([sequence] * (MAX_SEQUENCES + 1)) == []


def test_its_guesses_are_given_and_counted_apart() -> None:
    speculation, sequence = measured(), decoding()
    speculation.model_up = True
    assert asked(speculation, sequence) == 4
    speculation.give_guesses({sequence.seq_id: [7, 8, 9]}, 1, 0.003)
    assert speculation.drafts_of(sequence, 1) == [7, 8, 9]
    assert asked(speculation, sequence) == 0
    step(speculation, sequence, 3, 2)
    assert speculation.take_counts() == (1, 3, 2, 3, 2)
    assert speculation.drafts_of(sequence, 1) == []


def test_time_in_which_guesses_were_made_is_no_waiting_of_the_ranks() -> None:
    prices = []
    for drafting_s in (0.0, 0.008):
        speculation, sequence = measured(), decoding()
        speculation.model_up = True
        assert asked(speculation, sequence) == 4
        speculation.give_guesses({sequence.seq_id: [7, 8]}, 1, drafting_s)
        result = StepResult(step_id=1, sampled=[], compute_s=1.2 * PLAIN_S, wait_s=0.001 + drafting_s)
        speculation.book_step(1, result, [(sequence.seq_id, 2, 0)], alone=True)
        prices.append(speculation.costs.price(1))
    assert prices[0] == pytest.approx(prices[1]) == pytest.approx(0.15)


@pytest.mark.parametrize("each_s", [0.0005, 0.002, 0.009, 0.03])
def test_wrong_guesses_of_a_model_have_a_bounded_cost_over_all_sequences(each_s: float) -> None:
    speculation, tokens, spent, rounds = measured(), 0, 0.0, 0
    speculation.model_up = True
    for number in range(200):
        sequence = decoding(chr(200 + number))
        speculation.book_reading(1, 0.02)
        spent += 0.02 / PLAIN_S if speculation.model.pays else 0.0
        for _ in range(50):
            tokens += 1
            if count := asked(speculation, sequence):
                rounds += 1
                speculation.give_guesses({sequence.seq_id: [7] * count}, 1, each_s * count)
                spent += count * (each_s / PLAIN_S + 0.1)
                step(speculation, sequence, count, 0)
            else:
                speculation.book_plain(sequence.seq_id)
                add(sequence, 1)
    assert rounds > 0
    largest = 4 * (each_s / PLAIN_S + 0.1) + 0.02 / PLAIN_S  # a round that was begun with little credit
    assert spent <= START + EARNED * tokens + largest


def test_right_guesses_keep_the_model_in_use() -> None:
    speculation, sequence = measured(), decoding()
    speculation.model_up = True
    lengths = []
    for _ in range(6):
        count = asked(speculation, sequence)
        lengths.append(count)
        speculation.give_guesses({sequence.seq_id: [7] * count}, 1, 0.001 * count)
        step(speculation, sequence, count, count)
    assert min(lengths) > 0
    assert lengths[-1] == 4
    assert speculation.model.credit > START


def test_the_price_is_that_of_the_number_of_sequences() -> None:
    costs = ModelCosts(4)
    costs.book_round(1, 2, 0.004)
    costs.book_round(3, 6, 0.006)
    assert costs.price(1, PLAIN_S) == pytest.approx(0.2)
    assert costs.price(3, PLAIN_S) == pytest.approx(0.1)
