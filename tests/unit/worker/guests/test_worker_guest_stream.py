"""What arrives of one sequence of a guest, and how it ends."""

from typing import Any

import pytest

from services.worker.guests.port import GuestPart
from services.worker.guests.stream import GuestStream
from services.worker.rank_protocol.engine_sampling import EngineSampling
from services.worker.rank_protocol.plan import Sampled
from tests.kits.engine.plans import new_sequence

END, STOP = 256, 9


def stream(most: int = 4, **sampling: Any) -> GuestStream:
    new = new_sequence(1, [5, 6], EngineSampling(**sampling), eos_ids=[END])
    return GuestStream(new, most=most, vocab_size=257)


def part(*token_ids: int, **fields: Any) -> GuestPart:
    return GuestPart(seq_id=1, sampled=[Sampled(seq_id=1, token_id=one) for one in token_ids], **fields)


def taken(one: GuestStream) -> list[int | str]:
    """All that there is: tokens, then the error."""
    found: list[int | str] = []
    while (sampled := one.take_next()) is not None:
        found.append(sampled.error or sampled.token_id)
        if sampled.error:
            assert sampled.cause == "guest"
            break
    return found


def test_tokens_come_in_order_and_one_by_one() -> None:
    one = stream()
    assert (one.has_result, one.take_next()) == (False, None)
    one.add_part(part(1, 2))
    one.add_part(part(3))
    assert one.has_result
    assert taken(one) == [1, 2, 3]
    assert not one.has_result


@pytest.mark.parametrize(
    ("parts", "found"),
    [
        ([part(1, 2, 3, 4, finished="length")], [1, 2, 3, 4, "it ended the sequence after 4 of 4 tokens"]),
        ([part(1, finished="length")], [1, "it ended the sequence after 1 of 4 tokens"]),
        ([part(1, END, finished="stop")], [1, END, "it ended the sequence after 2 of 4 tokens"]),
        ([part(1, STOP, finished="stop")], [1, STOP, "it ended the sequence after 2 of 4 tokens"]),
        ([part(1), part(finished="stop")], [1, END, "it ended the sequence after 2 of 4 tokens"]),
        ([part(finished="stop")], [END, "it ended the sequence after 1 of 4 tokens"]),
        ([part(1, error="gone"), part(2)], [1, "gone"]),
        ([part(1, 2, 3, 4, 5, 6)], [1, 2, 3, 4]),
        ([part(1, 257, 2), part(3)], [1, "it brought token 257, and the model has 257 tokens"]),
        ([part(-1)], ["it brought token -1, and the model has 257 tokens"]),
        ([GuestPart(seq_id=1, sampled=[Sampled(seq_id=2, token_id=1)])],
         ["it brought a token of sequence 2 for sequence 1"]),
        ([GuestPart(seq_id=1, sampled=[Sampled(seq_id=1, token_id=0, error="no number")])], ["no number"]),
    ],
)  # fmt: skip
def test_a_guest_ends_a_sequence(parts: list[GuestPart], found: list[int | str]) -> None:
    one = stream(stop_token_ids=[STOP])
    for each in parts:
        one.add_part(each)
    assert taken(one) == found


def test_a_guest_that_ends_an_answer_that_may_not_end_has_failed() -> None:
    one = stream(ignore_eos=True)
    one.add_part(part(1, finished="stop"))
    assert taken(one) == [1, "it ended the sequence after 1 of 4 tokens"]
