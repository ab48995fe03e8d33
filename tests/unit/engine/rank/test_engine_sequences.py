"""The sequence state of ranks, the batches made from plans, and the refusal of invalid plans."""

import msgspec
import pytest

from services.worker.engine.plain.batch_builder import make_batch
from services.worker.engine.rank.sequences import PlanError, Sequences
from services.worker.rank_protocol.engine_sampling import EngineSampling
from services.worker.rank_protocol.plan import NewSequence, ScheduledChunk, StepPlan
from services.worker.rank_protocol.rank_messages import FrameKind, FrameReader, RankFailed, pack_frame
from services.worker.rank_protocol.sliding_pool import PoolSizes


def _new(seq_id: int, token_ids: list[int]) -> NewSequence:
    return NewSequence(
        seq_id=seq_id, token_ids=token_ids, prompt_len=len(token_ids), sampling=EngineSampling()
    )


def _chunk(
    seq_id: int, start: int, token_ids: list[int], new_blocks: list[int] | None = None
) -> ScheduledChunk:
    return ScheduledChunk(
        seq_id=seq_id, start=start, token_ids=token_ids, new_blocks=new_blocks or [], sample=True
    )


def _follow(seq_id: int, start: int) -> ScheduledChunk:
    return ScheduledChunk(seq_id=seq_id, start=start, token_ids=[], follow=True, sample=True)


def test_a_follow_chunk_is_the_token_that_was_sampled_here() -> None:
    sequences = Sequences(PoolSizes(9))
    plan = StepPlan(step_id=1, admit=[_new(1, [4, 5])], chunks=[_chunk(1, 0, [4, 5], [7])])
    (state,) = sequences.apply(plan)
    state.append_sampled(2, 77)
    state.append_sampled(1, 99)  # position 1 is in the past and does not change
    following = StepPlan(step_id=2, chunks=[_follow(1, 2)])
    batch = make_batch(following.chunks, sequences.apply(following))
    assert (batch.token_ids.tolist(), batch.positions.tolist()) == ([77], [2])
    assert batch.slots.tolist() == [7 * 16 + 2]
    assert state.tokens.view.tolist() == [4, 5, 77]


def test_tokens_and_tables_grow_with_the_chunks() -> None:
    sequences = Sequences(PoolSizes(9))
    prompt = list(range(20))
    (state,) = sequences.apply(
        StepPlan(step_id=1, admit=[_new(1, prompt)], chunks=[_chunk(1, 0, prompt, [7, 3])])
    )
    assert state.table.view.tolist() == [7, 3]
    for position in range(20, 40):
        blocks = [5] if position == 32 else []
        sequences.apply(StepPlan(step_id=2, chunks=[_chunk(1, position, [position], blocks)]))
    assert state.tokens.view.tolist() == list(range(40))
    assert state.table.view.tolist() == [7, 3, 5]
    sequences.apply(StepPlan(step_id=3, release=[1, 99]))
    assert len(sequences) == 0


def test_slots_follow_the_table_and_rows_the_plan() -> None:
    sequences = Sequences(PoolSizes(9))
    prompt = list(range(18))
    plan = StepPlan(
        step_id=1,
        admit=[_new(1, prompt), _new(2, [40])],
        chunks=[_chunk(1, 0, prompt, [7, 3]), _chunk(2, 0, [40], [1])],
    )
    batch = make_batch(plan.chunks, sequences.apply(plan))
    # the decode comes first
    assert batch.token_ids.tolist() == [40, *prompt]
    assert batch.slots.tolist() == [16, *range(7 * 16, 8 * 16), 48, 49]
    assert batch.sample_rows.tolist() == [18, 0]


def test_padding_of_decodes_is_bounded() -> None:
    starts = [4000, 3, 900, 5, 4090, 100]  # in tokens; a long sequence must not pad the short ones
    sequences = Sequences(PoolSizes(1000))
    admit = [_new(seq_id, [1] * (start + 1)) for seq_id, start in enumerate(starts)]
    chunks = [_chunk(seq_id, start, [1], list(range(256))) for seq_id, start in enumerate(starts)]
    plan = StepPlan(step_id=1, admit=admit, chunks=chunks)
    batch = make_batch(plan.chunks, sequences.apply(plan))
    assert batch.positions.tolist() == sorted(starts)
    assert batch.sample_rows.tolist() == [4, 0, 3, 1, 5, 2]
    assert [(part.begin, part.end, part.length) for part in batch.attention_metadata[0].decodes] == [
        (0, 3, 101),
        (3, 4, 901),
        (4, 6, 4091),
    ]


@pytest.mark.parametrize(
    ("plan", "named"),
    [
        (StepPlan(step_id=2, chunks=[_chunk(5, 0, [1])]), "sequence 5 is not known"),
        (StepPlan(step_id=2, admit=[_new(1, [1])]), "sequence 1 was admitted twice"),
        (StepPlan(step_id=2, chunks=[_chunk(1, 5, [1])]), "at 5"),
        (StepPlan(step_id=2, chunks=[_chunk(1, -1, [1])]), "at -1"),
        (StepPlan(step_id=2, chunks=[_chunk(1, 3, [])]), "no slice"),
        (StepPlan(step_id=2, chunks=[_chunk(1, 3, [1] * 14)]), "1 blocks cannot hold 17 tokens"),
        (StepPlan(step_id=2, chunks=[_chunk(1, 1, [2, 7])]), "other tokens at 1"),
        (StepPlan(step_id=2, chunks=[_follow(1, 3)]), "token 3 is not the one sampled last of 3"),
        (StepPlan(step_id=2, chunks=[_follow(1, 1)]), "token 1 is not the one sampled last of 3"),
        (
            StepPlan(step_id=2, chunks=[ScheduledChunk(seq_id=1, start=2, token_ids=[3], follow=True)]),
            "no slice of 3 tokens at 2",
        ),
        (StepPlan(step_id=2, chunks=[_chunk(1, 3, [1], [4])]), r"outside 0\.\.3"),
        (StepPlan(step_id=2, chunks=[_chunk(1, 3, [1], [-1])]), r"outside 0\.\.3"),
    ],
)
def test_a_plan_that_cannot_be_right_is_refused(plan: StepPlan, named: str) -> None:
    sequences = Sequences(PoolSizes(4))
    sequences.apply(StepPlan(step_id=1, admit=[_new(1, [1, 2, 3])], chunks=[_chunk(1, 0, [1, 2, 3], [0])]))
    with pytest.raises(PlanError, match=named):
        sequences.apply(plan)


def test_frames_survive_any_cutting() -> None:
    messages = [RankFailed(message="x" * size) for size in (0, 1, 300)]
    stream = b"".join(pack_frame(FrameKind.FAILED, message) for message in messages)
    for step in (1, 2, 7, len(stream)):
        reader, found = FrameReader(), []
        for begin in range(0, len(stream), step):
            found += list(reader.feed(stream[begin : begin + step]))
        assert [kind for kind, _ in found] == [FrameKind.FAILED] * 3
        assert [msgspec.msgpack.decode(body, type=RankFailed) for _, body in found] == messages


@pytest.mark.parametrize("stream", [b"\xff\xff\xff\xff\x01", b"\x00\x00\x00\x00\x63"])
def test_a_stream_of_no_frames_is_refused(stream: bytes) -> None:
    with pytest.raises(ValueError, match=r"frame|FrameKind"):
        list(FrameReader().feed(stream))
