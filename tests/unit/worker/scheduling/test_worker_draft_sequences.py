"""The draft engine's sequences: blocks are neither lost nor used twice, whatever the target takes."""

import random

from services.worker.domain.scheduling.sequence import Sequence
from services.worker.domain.speculation.draft_sequences import CATCH_UP_TOKENS, DraftSequences, Wish
from services.worker.null.null_engine import NullEngine
from services.worker.rank_protocol.plan import StepPlan
from shared.messages import Sampling

TOKENS = [*range(1, 60)]
NUM_BLOCKS, CONTEXT = 24, 300


def following(seq_id: int, prompt: list[int]) -> Sequence:
    made = Sequence(str(seq_id), 0, list(prompt), len(prompt), 500, Sampling(logprobs=3))
    made.seq_id = seq_id
    return made


class Rounds:
    """Computes rounds with the null engine, which checks blocks and positions."""

    def __init__(self) -> None:
        self.sequences = DraftSequences(NUM_BLOCKS, CONTEXT)
        self.engine = NullEngine(tokens=TOKENS, num_blocks=NUM_BLOCKS, vocab_size=64, context_length=CONTEXT)
        self.engine.reset()

    def guess(self, wishes: list[Wish]) -> dict[str, list[int]]:
        plan, sampling = self.sequences.begin(wishes)
        names = {self.sequences.id_of(one): one.request_id for one, _ in sampling}
        found: dict[str, list[int]] = {name: [] for name in names.values()}
        step = 1
        following: StepPlan | None = plan if plan.slices else None
        while following is not None:
            for one in self.engine.compute(following).sampled:
                found[names[one.seq_id]].append(one.token_id)
            following = self.sequences.follow(sampling, step)
            step += 1
        for one, _ in sampling:
            self.sequences.note_guesses(one, found[one.request_id])
        self.sequences.check_invariants()
        return found


def test_guesses_follow_the_tokens_that_the_target_took() -> None:
    rounds, one = Rounds(), following(7, [3] * 20)
    assert rounds.guess([Wish(one, 3)]) == {"7": [21, 22, 23]}
    one.tokens += [21, 22, 50]  # the third guess was refused
    assert rounds.sequences.missing(one) == 1
    assert rounds.guess([Wish(one, 2)]) == {"7": [24, 25]}
    one.tokens += [24, 25, 26, 9, 9]  # all were right, and more tokens came without guesses
    assert rounds.sequences.missing(one) == 4
    assert rounds.guess([Wish(one, 1)]) == {"7": [29]}


def test_a_long_prompt_is_computed_in_pieces_before_the_first_guess() -> None:
    rounds, one = Rounds(), following(1, [5] * (2 * CATCH_UP_TOKENS + 3))
    assert rounds.guess([Wish(one, 2)]) == {}
    assert rounds.sequences.missing(one) == CATCH_UP_TOKENS + 3
    one.tokens.append(8)
    assert rounds.guess([Wish(one, 2)]) == {}
    assert len(rounds.guess([Wish(one, 2)])["1"]) == 2


def test_what_does_not_fit_is_left_out_and_gets_blocks_when_others_left() -> None:
    rounds = Rounds()
    long, short = following(1, [4] * 280), following(2, [4] * 120)
    assert list(rounds.guess([Wish(short, 4), Wish(long, 4)])) == ["2"]
    assert not rounds.sequences.follows(long)
    assert rounds.guess([Wish(following(3, [4] * 299), 2)]) == {}  # longer than the context
    rounds.sequences.retain([1])
    assert rounds.sequences.num_free == NUM_BLOCKS
    assert rounds.guess([Wish(long, 4)]) == {}
    assert rounds.sequences.follows(long)


def test_no_block_is_lost_or_used_twice_whatever_is_taken() -> None:
    chance, rounds, live, last = random.Random(5), Rounds(), dict[int, Sequence](), 0
    guessed = 0
    for _ in range(600):
        if len(live) < 5 and chance.random() < 0.3:
            last += 1
            live[last] = following(last, [chance.choice(TOKENS) for _ in range(chance.randint(1, 60))])
        for seq_id in [one for one in live if chance.random() < 0.03]:
            del live[seq_id]
        rounds.sequences.retain(live)
        wishes = [Wish(one, chance.randint(1, 6)) for one in live.values() if chance.random() < 0.7]
        for name, guesses in rounds.guess(wishes).items():
            one = live[int(name)]
            assert guesses == [
                TOKENS[place % 59] for place in range(len(one.tokens), len(one.tokens) + len(guesses))
            ]
            guessed += len(guesses)
            one.tokens += guesses[: chance.randint(0, len(guesses))]
        for one in live.values():
            one.tokens += [chance.choice(TOKENS)] * chance.randint(0, 2)
    assert guessed > 300
    rounds.sequences.retain([])
    assert rounds.sequences.num_free == NUM_BLOCKS
