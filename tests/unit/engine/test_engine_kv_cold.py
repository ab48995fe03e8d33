"""The fp8 cold zone of the kernels' KV cache against its reference, in any batch, on any number of ranks."""

from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file
from torch import Tensor

from services.worker.engine.checkpoint.weight_files import Checkpoint, open_checkpoint
from services.worker.engine.checkpoint.weight_loader import open_source
from services.worker.engine.cold_zone import (
    PASS_TOKENS,
    ColdZone,
    cold_zone,
    dequantize,
    parse_layers,
    quantize,
)
from services.worker.engine.collectives.base import Collectives, SingleRank
from services.worker.engine.config.json_fields import ModelError
from services.worker.engine.config.model import ModelConfig
from services.worker.engine.config.read_config import read_config
from services.worker.engine.native.build import targets
from services.worker.engine.native.compute import NativeCompute, NativeOptions
from services.worker.engine.native.library import kernels
from services.worker.engine.native.recent_window import RecentWindow
from services.worker.engine.native.weights import NativeWeights
from services.worker.engine.plain.reference import ReferenceDecoder
from services.worker.engine.plain.references.cold_zone import ColdReference
from services.worker.engine.rank.compute import Compute
from services.worker.engine.rank.runner import Runner
from services.worker.engine.rank.sequences import PlanError, SequenceState
from services.worker.rank_protocol.plan import BLOCK_SIZE, ScheduledChunk, StepPlan
from services.worker.rank_protocol.run_config import EngineRunConfig
from services.worker.rank_protocol.sliding_pool import PoolSizes
from tests.kits.engine.rank_threads import (
    Blocks,
    ComputeFactory,
    make_model,
    new_sequence,
    plan_logits,
    run_threads,
    some_tokens,
)
from tests.kits.engine.small_models import all_models

TARGETS = targets()
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "grouped heads": ("llama", {}),
    "one KV head": ("llama", {"num_key_value_heads": 1}),  # more query heads than one task computes
    "a KV head each": ("llama", {"num_key_value_heads": 8}),  # one task computes eight tokens
    "mistral": ("mistral", {"sliding_window": 75}),
    "qwen3": ("qwen3", {"head_dim": 24}),  # not a multiple of the vector width
}
ALL = (True, True, True)
pytestmark = pytest.mark.skipif(not TARGETS, reason="the kernels are for x86-64 with AVX2")


def native(
    zone: ColdZone | None,
    target: str | None = None,
    threads: int = 1,
    kv_dtype: torch.dtype = torch.float32,
) -> ComputeFactory:
    """A factory of the compiled backend with a cold zone."""

    def make(
        checkpoint: Checkpoint, config: ModelConfig, collectives: Collectives, num_blocks: int
    ) -> Compute:
        compiled = kernels(target)
        weights = NativeWeights.load(open_source(checkpoint, config, collectives), config, compiled)
        options = NativeOptions(threads, kv_dtype, zone, spin=False)
        sizes = PoolSizes(num_blocks)
        return NativeCompute(compiled, config, weights, collectives, sizes=sizes, options=options)

    return make


def rms(errors: Tensor) -> float:
    return float(errors.square().mean().sqrt())


models = all_models(VARIANTS)


def in_pieces(cuts: list[int], text: list[int], blocks: Blocks) -> list[StepPlan]:
    """Plans that compute the text from cut to cut, each with one sampled slice."""
    plans = [StepPlan(step_id=0, admit=[new_sequence(1, text)])]
    for begin, end in pairwise(cuts):
        plans.append(StepPlan(step_id=len(plans), chunks=[blocks.chunk(1, begin, text[begin:end])]))
    return plans


def logits_by_end(
    model: Path, cuts: list[int], text: list[int], compute: ComputeFactory, world: int = 1
) -> dict[int, Tensor]:
    """The logits after each piece, by the number of tokens up to its end."""
    rows = plan_logits(model, world, in_pieces(cuts, text, Blocks(64)), compute=compute)[1:]
    return {end: row[-1] for end, row in zip(cuts[1:], rows, strict=True)}


@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.parametrize("hot_blocks", [0, 1, 3])
def test_kernels_compute_what_the_oracle_says(models: dict[str, Path], name: str, hot_blocks: int) -> None:
    model, text = models[name], some_tokens(150, 3)
    zone = ColdZone(hot_blocks, (True, False, True) if hot_blocks == 3 else ALL)
    with open_checkpoint(model) as checkpoint:
        wanted = ColdReference(checkpoint, read_config(model), zone).logits(text)
        plain = ReferenceDecoder(checkpoint, read_config(model)).logits(text)
    cuts = [0, 7, 30, 32, 33, 95, 96, 97, 98, 113, 149, 150]
    for target in TARGETS:
        found = logits_by_end(model, cuts, text, native(zone, target))
        for end, row in found.items():
            # the inputs differ in their last bits, so a number near the middle of two codes may get either
            lost = rms(wanted[end - 1] - plain[end - 1])
            assert rms(row - wanted[end - 1]) < 0.1 * lost + 1e-4
    exact = BLOCK_SIZE * (hot_blocks + 1)
    assert rms(wanted[:exact] - plain[:exact]) < 1e-5
    assert rms(wanted[149] - plain[149]) > 3e-3


@pytest.mark.parametrize("name", ["a KV head each", "mistral", "qwen3"])
@pytest.mark.parametrize("kv_dtype", [torch.float32, torch.float16])
def test_same_bits_in_any_batch(models: dict[str, Path], name: str, kv_dtype: torch.dtype) -> None:
    """The text is cut in several ways and runs beside one sequence within the hot zone and a longer one."""
    model, text = models[name], some_tokens(140, 5)
    zone = ColdZone(1, ALL)

    def beside_others(blocks: Blocks) -> list[StepPlan]:
        long, short = some_tokens(90, 6), some_tokens(9, 7)
        return [
            StepPlan(
                step_id=1,
                admit=[new_sequence(i, tokens) for i, tokens in ((1, text), (2, long), (3, short))],
                chunks=[
                    blocks.chunk(2, 0, long),
                    blocks.chunk(1, 0, text[:77]),
                    blocks.chunk(3, 0, short[:3]),
                ],
            ),
            StepPlan(
                step_id=2,
                release=[2],
                chunks=[blocks.chunk(3, 3, short[3:4]), blocks.chunk(1, 77, text[77:139])],
            ),
            StepPlan(
                step_id=3,
                chunks=[blocks.chunk(3, 4, short[4:]), blocks.chunk(1, 139, text[139:])],
            ),
        ]

    for target in TARGETS:
        wanted = logits_by_end(model, [0, 140], text, native(zone, target, kv_dtype=kv_dtype))[140]
        assert torch.isfinite(wanted).all()
        for threads in (1, 3):
            compute = native(zone, target, threads, kv_dtype)
            one_by_one = logits_by_end(model, [0, 5, 38, *range(39, 141)], text, compute)[140]
            assert torch.equal(one_by_one, wanted)
            mixed = plan_logits(model, 1, beside_others(Blocks(64)), compute=compute)[-1]
            assert torch.equal(mixed[-1], wanted)


def test_shorter_than_the_hot_zone_is_exact(models: dict[str, Path]) -> None:
    model, text = models["grouped heads"], some_tokens(48, 8)
    cuts = [0, 20, *range(21, 49)]
    exact = logits_by_end(model, cuts, text, native(None))
    found = logits_by_end(model, cuts, text, native(ColdZone(2, ALL)))
    assert all(torch.equal(found[end], exact[end]) for end in cuts[1:])


def test_layers_that_were_not_chosen_lose_nothing(models: dict[str, Path]) -> None:
    model, text = models["grouped heads"], some_tokens(100, 8)
    cuts = [0, 99, 100]
    exact, one, two, every = (
        logits_by_end(model, cuts, text, native(zone))[100]
        for zone in (
            None,
            ColdZone(1, (False, False, True)),
            ColdZone(1, (True, False, True)),
            ColdZone(1, ALL),
        )
    )
    errors = [float((row - exact).square().mean()) for row in (one, two, every)]
    assert 0 < errors[0] < errors[1] < errors[2]


def test_ranks_agree(models: dict[str, Path]) -> None:
    """Includes uneven and shared KV heads; a scale belongs to one head, so the split changes no scale."""
    model, text = models["grouped heads"], some_tokens(130, 9)
    cuts = [0, 64, 129, 130]
    wanted = logits_by_end(model, cuts, text, native(ColdZone(1, ALL)))[130]
    for world in (2, 3, 8):
        found = logits_by_end(model, cuts, text, native(ColdZone(1, ALL)), world)[130]
        torch.testing.assert_close(found, wanted, atol=3e-2, rtol=0)  # other sums, so some codes differ


def test_codes_are_those_of_torch() -> None:
    """The kernels' compression equals `quantize` to the last bit for numbers of all magnitudes."""
    generator = torch.Generator().manual_seed(1)
    sides = [
        torch.randn(256, generator=generator),
        torch.randn(256, generator=generator).exp() ** 4,
        torch.linspace(-448, 448, 256),
        torch.linspace(-0.07, 0.07, 256) * 448,
        torch.zeros(256),
        torch.full((256,), 1e-37),
        torch.tensor([3e38, -1e-20] * 128),
    ]
    for target in TARGETS:
        compiled = kernels(target)
        for side in sides:
            codes, scale = np.zeros(256, np.uint8), np.zeros(1, np.float32)
            compiled.compress(side.data_ptr(), 256, codes.ctypes.data, scale.ctypes.data)
            wanted, wanted_scale = quantize(side)
            assert scale[0] == wanted_scale.item()
            assert codes.tolist() == wanted.view(torch.uint8).tolist()


def test_what_compression_leaves() -> None:
    side = torch.randn(4, 1024, generator=torch.Generator().manual_seed(2))
    left = dequantize(*quantize(side))
    assert (left - side).abs().max() <= side.abs().max() / 16
    assert ((left - side).square().mean() / side.square().mean()).sqrt() < 0.03
    side[1, 7] = torch.nan
    assert dequantize(*quantize(side)).isnan().any(-1).tolist() == [False, True, False, False]


Bytes = NDArray[np.uint8]


def test_blocks_travel_compressed(models: dict[str, Path]) -> None:
    """Two ranks write the blocks; two, one, three (2, 1 and 1 KV heads) and four ranks read them."""
    model, text = models["qwen3"], some_tokens(75, 4)
    zone, past, full = ColdZone(1, (True, False, True)), 64, 4
    shape = read_config(model)

    def write(collectives: Collectives) -> tuple[dict[tuple[int, int], bytes], Tensor | None]:
        compute = _loaded(model, native(zone), collectives)
        blocks, runner, stored = Blocks(64), Runner(compute), {}
        first = blocks.chunk(1, 0, text[:past])
        runner.compute_logits(StepPlan(step_id=1, admit=[new_sequence(1, text)], chunks=[first]))
        rows: Bytes = np.zeros((len(compute.blocks.writes), compute.blocks.head_bytes), np.uint8)
        for index, block in enumerate(first.new_blocks):
            compute.blocks.copy_out(block, rows)
            for head, row in zip(compute.blocks.writes, rows, strict=True):
                stored[index, head] = row.tobytes()
        # a second sequence that finds the blocks in the cache of the same group
        again = blocks.share(1, 2, past, text[past:])
        plan = StepPlan(step_id=2, admit=[new_sequence(2, text)], chunks=[again], release=[1])
        logits = runner.compute_logits(plan)[1]
        return stored, None if logits is None else logits.clone()

    def read(collectives: Collectives) -> Tensor | None:
        compute = _loaded(model, native(zone), collectives)
        table = Blocks(64).chunk(1, 0, text).new_blocks
        for (index, head), data in stored.items():
            if head in compute.blocks.heads:
                compute.blocks.copy_in(table[index], head, np.frombuffer(data, np.uint8)[None])
        rest = ScheduledChunk(seq_id=1, start=past, token_ids=text[past:], new_blocks=table, sample=True)
        plan = StepPlan(step_id=1, admit=[new_sequence(1, text)], chunks=[rest])
        logits = Runner(compute).compute_logits(plan)[1]
        return None if logits is None else logits.clone()

    results = run_threads(2, write)
    stored = results[0][0] | results[1][0]
    numbers = BLOCK_SIZE * shape.head_dim
    assert {len(data) for data in stored.values()} == {2 * (2 * (numbers + 4) + 4 * numbers)}
    assert len(stored) == full * shape.num_kv_heads
    wanted = results[0][1]
    same, *others = (run_threads(world, read)[0] for world in (2, 1, 3, 4))
    assert wanted is not None
    assert same is not None
    assert torch.equal(same, wanted)
    for found in others:
        torch.testing.assert_close(found, wanted, atol=1e-4, rtol=0)


def test_a_block_is_compressed_once(models: dict[str, Path]) -> None:
    """A block copied out while its sequence reads it in full precision has the same bytes as later copies."""
    model, text = models["grouped heads"], some_tokens(100, 4)
    compute, blocks = _loaded(model, native(ColdZone(2, ALL)), SingleRank()), Blocks(64)
    runner, copies = Runner(compute), []
    out: Bytes = np.zeros((len(compute.blocks.writes), compute.blocks.head_bytes), np.uint8)
    first = blocks.chunk(1, 0, text[:16])
    for begin, end in pairwise([0, 16, 40, 41, 99]):
        part = blocks.chunk(1, begin, text[begin:end]) if begin else first
        admit = [] if begin else [new_sequence(1, text)]
        runner.compute_logits(StepPlan(step_id=end, admit=admit, chunks=[part]))
        compute.blocks.copy_out(first.new_blocks[0], out)
        copies.append(out.tobytes())
    assert len(set(copies)) == 1


def blocks_near(tokens: int) -> int:
    """The number of blocks that the token after `tokens` reads in full precision, with one hot block."""
    return -(-tokens // BLOCK_SIZE) - (tokens // BLOCK_SIZE - 1)


def test_window_slots_are_freed(models: dict[str, Path]) -> None:
    model = models["grouped heads"]
    compute = _loaded(model, native(ColdZone(1, ALL)), SingleRank())
    assert isinstance(compute, NativeCompute)
    window = compute.recent_window
    assert window is not None
    runner, blocks = Runner(compute), Blocks(64)
    texts = {i: some_tokens(60 + i, i) for i in range(1, 7)}
    for i, text in texts.items():
        runner.compute_logits(
            StepPlan(step_id=i, admit=[new_sequence(i, text)], chunks=[blocks.chunk(i, 0, text)])
        )
        assert window.num_used == sum(blocks_near(len(texts[other])) for other in range(1, i + 1))
    for i, text in texts.items():
        runner.compute_logits(StepPlan(step_id=i, chunks=[blocks.chunk(i, len(text), [1])]))
    assert window.num_used == sum(blocks_near(len(text) + 1) for text in texts.values())
    runner.compute_logits(StepPlan(step_id=9, release=list(texts)))
    assert window.num_used == 0


@pytest.mark.parametrize("hot_blocks", [0, 1, 4])
def test_window_slots_are_never_more_than_was_said(hot_blocks: int) -> None:
    """Random sequences start and end, in passes of up to PASS_TOKENS tokens."""
    rng, max_running = Random(hot_blocks), 12
    window = RecentWindow(ColdZone(hot_blocks, ALL).window_slots(max_running), hot_blocks)
    running: dict[SequenceState, int] = {}
    for seq_id in range(600):
        if len(running) == max_running:
            del running[rng.choice(list(running))]
        state = SequenceState(new_sequence(seq_id, [1]))
        state.table.extend(list(range(200)))
        running[state] = BLOCK_SIZE * rng.randint(0, 5)  # tokens found in the prefix cache
        room, spans = PASS_TOKENS, []
        for each in rng.sample(list(running), rng.randint(1, len(running))):
            count = min(room, rng.choice((1, 1, 17, 60, 300)), 3200 - running[each])
            if count:
                spans.append((each, running[each], count))
                running[each], room = running[each] + count, room - count
        if spans:
            window.assign_slots(spans)
        del state, each, spans
    running.clear()
    assert window.num_used == 0


def test_damage_stays_in_its_sequence(tmp_path: Path) -> None:
    """Compression keeps NaN: the sequence with the damage gets NaN logits, the other one finite logits."""
    model = make_model(tmp_path, "llama")
    tensors = load_file(tmp_path / "model.safetensors")
    tensors["model.embed_tokens.weight"][7] = float("nan")
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    sound = [token if token != 7 else 8 for token in some_tokens(80, 2)]
    damaged = [7, *sound[1:]]
    blocks = Blocks(64)
    plans = [
        StepPlan(
            step_id=1,
            admit=[new_sequence(1, sound), new_sequence(2, damaged)],
            chunks=[blocks.chunk(1, 0, sound[:79]), blocks.chunk(2, 0, damaged[:79])],
        ),
        StepPlan(step_id=2, chunks=[blocks.chunk(1, 79, sound[79:]), blocks.chunk(2, 79, damaged[79:])]),
    ]
    for target in TARGETS:
        logits = plan_logits(model, 1, plans, compute=native(ColdZone(1, ALL), target))[-1]
        assert torch.isfinite(logits[0]).all()
        assert torch.isnan(logits[1]).all()


def test_a_sequence_cannot_begin_within_a_block(models: dict[str, Path]) -> None:
    compute, text = (
        _loaded(models["grouped heads"], native(ColdZone(1, ALL)), SingleRank()),
        some_tokens(30, 1),
    )
    part = Blocks(64).chunk(1, 0, text)
    late = ScheduledChunk(seq_id=1, start=20, token_ids=text[20:], new_blocks=part.new_blocks)
    with pytest.raises(PlanError, match="sequence 1 begins at token 20, in a block that it did not fill"):
        Runner(compute).compute_logits(StepPlan(step_id=1, admit=[new_sequence(1, text)], chunks=[late]))


@pytest.mark.parametrize(
    ("text", "layers", "canonical"),
    [
        ("all", (True,) * 4, "all"),
        ("0-3", (True,) * 4, "all"),
        ("3", (False, False, False, True), "3"),
        ("0-1, 3", (True, True, False, True), "0-1,3"),
        ("3,1,1-1", (False, True, False, True), "1,3"),
    ],
)
def test_layers_are_chosen_by_number(text: str, layers: tuple[bool, ...], canonical: str) -> None:
    assert parse_layers(text, 4) == layers
    assert ColdZone(2, layers).format == f"fp8:32:{canonical}"


@pytest.mark.parametrize("text", ["", "4", "0-4", "2-1", "a", "1,,2", "-1", "all,1"])
def test_layers_that_there_are_not(text: str) -> None:
    with pytest.raises(ModelError, match=r"kv_cold_layers=.* is no layer.* of 0 to 3; write `all`"):
        parse_layers(text, 4)


def test_a_cold_zone_is_asked_for() -> None:
    assert cold_zone(EngineRunConfig(), 3) is None
    assert cold_zone(EngineRunConfig(kv_cold="fp8", kv_hot_tokens=17), 3) == ColdZone(2, ALL)


def _loaded(model: Path, make: ComputeFactory, collectives: Collectives) -> Compute:
    with open_checkpoint(model) as checkpoint:
        return make(checkpoint, read_config(model), collectives, 64)
