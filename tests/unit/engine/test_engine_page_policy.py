"""Policies of which pages a token reads: the setting, and kernels and plain path against the oracle."""

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from torch import Tensor

from services.worker.engine.checkpoint.weight_files import Checkpoint, open_checkpoint
from services.worker.engine.checkpoint.weight_loader import open_source
from services.worker.engine.cold_zone import ColdZone
from services.worker.engine.collectives.base import Collectives, SingleRank
from services.worker.engine.config.json_fields import ModelError
from services.worker.engine.config.model import ModelConfig
from services.worker.engine.config.read_config import read_config
from services.worker.engine.native.build import targets
from services.worker.engine.native.compute import NativeCompute, NativeOptions
from services.worker.engine.native.library import kernels
from services.worker.engine.native.weights import NativeWeights
from services.worker.engine.plain import cuda_graphs
from services.worker.engine.plain.compute import PlainCompute
from services.worker.engine.plain.model import Decoder
from services.worker.engine.plain.plain_cache import KVCache
from services.worker.engine.plain.reference import ReferenceDecoder
from services.worker.engine.plain.references.cold_zone import ColdReference
from services.worker.engine.rank.backend import load_backend
from services.worker.engine.rank.compute import Compute
from services.worker.rank_protocol.page_policy import PagePolicy, page_policy
from services.worker.rank_protocol.plan import StepPlan
from services.worker.rank_protocol.sliding_pool import PoolSizes
from tests.kits.engine.decode_plans import EagerCapture, decode_plans
from tests.kits.engine.rank_options import rank_config
from tests.kits.engine.rank_threads import (
    Blocks,
    ComputeFactory,
    make_model,
    new_sequence,
    plan_logits,
    some_tokens,
)
from tests.kits.families.models import ENTRIES, save_model

TARGETS = targets()
TOKENS, NUM_BLOCKS = 230, 64
CUTS = [0, 7, 30, 32, 95, 96, 97, 130, 161, 229, TOKENS]
# a window; with sinks; with strides that begin within the sinks; strides alone
POLICIES = [PagePolicy(1), PagePolicy(2, 3), PagePolicy(3, 2, 3), PagePolicy(4, 0, 2)]
needs_kernels = pytest.mark.skipif(not TARGETS, reason="the kernels are for x86-64 with AVX2")


def native(
    pages: PagePolicy | None,
    target: str | None = None,
    threads: int = 1,
    cold: ColdZone | None = None,
    kv: torch.dtype = torch.float32,
) -> ComputeFactory:
    def make(
        checkpoint: Checkpoint, config: ModelConfig, collectives: Collectives, num_blocks: int
    ) -> Compute:
        compiled = kernels(target)
        weights = NativeWeights.load(open_source(checkpoint, config, collectives), config, compiled)
        options = NativeOptions(threads, kv, cold, spin=False, pages=pages)
        return NativeCompute(
            compiled, config, weights, collectives, sizes=PoolSizes(num_blocks), options=options
        )

    return make


def plain(
    pages: PagePolicy | None, capture: EagerCapture | None = None, *, tiled: bool = False
) -> ComputeFactory:
    def make(
        checkpoint: Checkpoint, config: ModelConfig, collectives: Collectives, num_blocks: int
    ) -> Compute:
        cache = KVCache(config, PoolSizes(num_blocks), collectives.rank, collectives.world)
        model = Decoder(checkpoint, config, collectives)
        return PlainCompute(model, cache, capture, pages=pages, tiled=tiled)

    return make


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("model"), "llama", num_hidden_layers=2)


def last_rows(
    model: Path, cuts: list[int], text: list[int], compute: ComputeFactory, world: int = 1
) -> list[Tensor]:
    """The logits after each piece of the text."""
    blocks = Blocks(NUM_BLOCKS)
    plans = [StepPlan(step_id=0, admit=[new_sequence(1, text)])]
    plans += [
        StepPlan(step_id=1, chunks=[blocks.chunk(1, begin, text[begin:end])]) for begin, end in pairwise(cuts)
    ]
    rows = plan_logits(model, world, plans, num_blocks=NUM_BLOCKS, compute=compute)[1:]
    return [row[-1] for row in rows]


@pytest.mark.parametrize(
    ("text", "policy"),
    [
        ("full", None),
        ("window=4096", PagePolicy(256)),
        ("window=4097,sinks=1", PagePolicy(257, 1)),
        ("stride=16, sinks=64, window=16", PagePolicy(1, 4, 16)),
        ("window=16,stride=0", PagePolicy(1)),
    ],
)
def test_the_setting_is_parsed_in_pages(text: str, policy: PagePolicy | None) -> None:
    assert page_policy(text) == policy
    assert policy is None or page_policy(str(policy)) == policy


@pytest.mark.parametrize(
    "text",
    ["", "windows=3", "sinks=64", "window=0", "window=16,window=32", "window=16,stride=1", "window=16,,"],
)
def test_what_is_no_policy_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"window"):
        page_policy(text)


@pytest.mark.parametrize("pages", POLICIES, ids=str)
def test_rows_are_those_of_the_oracle(llama: Path, pages: PagePolicy) -> None:
    text = some_tokens(TOKENS, 3)
    with open_checkpoint(llama) as checkpoint:
        wanted = ReferenceDecoder(checkpoint, read_config(llama), pages).logits(text)
        everything = ReferenceDecoder(checkpoint, read_config(llama)).logits(text)
    assert (wanted[-1] - everything[-1]).abs().max() > 0.02
    modes = [plain(pages), plain(pages, EagerCapture()), plain(pages, tiled=True)]
    modes += [native(pages, target) for target in TARGETS]
    for mode in modes:
        for end, row in zip(CUTS[1:], last_rows(llama, CUTS, text, mode), strict=True):
            torch.testing.assert_close(row, wanted[end - 1], atol=1e-4, rtol=0)


@needs_kernels
@pytest.mark.parametrize("pages", POLICIES[1:3], ids=str)
def test_compressed_pages_are_chosen_alike(llama: Path, pages: PagePolicy) -> None:
    """Also where the recent pages are fewer than those in full precision."""
    text, zone = some_tokens(TOKENS, 4), ColdZone(3, (True, False))
    with open_checkpoint(llama) as checkpoint:
        wanted = ColdReference(checkpoint, read_config(llama), zone, pages).logits(text)
        exact = ReferenceDecoder(checkpoint, read_config(llama), pages).logits(text)
    for target in TARGETS:
        found = last_rows(llama, CUTS, text, native(pages, target, cold=zone))
        for end, row in zip(CUTS[1:], found, strict=True):
            lost = (wanted[end - 1] - exact[end - 1]).square().mean().sqrt()
            assert (row - wanted[end - 1]).square().mean().sqrt() < 0.1 * lost + 1e-4


@needs_kernels
@pytest.mark.parametrize("family", ["mpt", "gpt_oss"])
def test_biases_by_distance_and_sinks_fit_the_pages(tmp_path: Path, family: str) -> None:
    """ALiBi counts the distance in the sequence, and layers with a window of their own keep it."""
    if family == "mpt":
        entry = ENTRIES["mpt, clipped"]
        model = save_model(replace(entry, fields=entry.fields | {"max_seq_len": 256}), tmp_path)
    else:
        experts = {"sliding_window": 40, "num_local_experts": 2, "num_experts_per_tok": 1}
        model = make_model(tmp_path, family, **experts)
    text, pages = [token % 90 for token in some_tokens(TOKENS, 5)], PagePolicy(2, 1, 4)
    wanted = last_rows(model, CUTS, text, plain(pages))
    everything = last_rows(model, CUTS, text, plain(None))
    assert (wanted[-1] - everything[-1]).abs().max() > 1e-3
    for target in TARGETS:
        for row, other in zip(last_rows(model, CUTS, text, native(pages, target)), wanted, strict=True):
            torch.testing.assert_close(row, other, atol=1e-4, rtol=0)


@needs_kernels
@pytest.mark.parametrize("cold", [None, ColdZone(1, (True, True))], ids=["exact", "fp8"])
def test_same_bits_in_any_cut_on_any_number_of_threads(tmp_path: Path, cold: ColdZone | None) -> None:
    """The pages that are read fill more than one segment, so a decode is shared by threads."""
    model = make_model(tmp_path, "llama", num_hidden_layers=2, max_position_embeddings=4096)
    text, pages = some_tokens(1900, 6), PagePolicy(60, 5, 2)
    for target in TARGETS:
        whole = [
            StepPlan(
                step_id=1, admit=[new_sequence(1, text)], chunks=[Blocks(128).chunk(1, 0, text, sample=True)]
            )
        ]
        wanted = plan_logits(
            model, 1, whole, num_blocks=128, compute=native(pages, target, cold=cold, kv=torch.float16)
        )[-1][-1]
        for threads in (1, 3):
            blocks = Blocks(128)
            cuts = [0, 700, 1313, 1890, *range(1891, 1901)]
            plans = [StepPlan(step_id=1, admit=[new_sequence(1, text)])]
            plans += [StepPlan(step_id=2, chunks=[blocks.chunk(1, a, text[a:b])]) for a, b in pairwise(cuts)]
            compute = native(pages, target, threads, cold, torch.float16)
            found = plan_logits(model, 1, plans, num_blocks=128, compute=compute)[-1][-1]
            assert torch.equal(found, wanted)


@needs_kernels
def test_a_policy_that_reaches_everything_changes_no_bit(llama: Path) -> None:
    text = some_tokens(TOKENS, 7)
    wanted = last_rows(llama, CUTS, text, native(None))
    for pages in (PagePolicy(20), PagePolicy(1, 20), PagePolicy(14, 0, 5)):
        found = last_rows(llama, CUTS, text, native(pages))
        assert all(torch.equal(row, other) for row, other in zip(found, wanted, strict=True))


@needs_kernels
def test_ranks_choose_the_same_pages(llama: Path) -> None:
    text, pages = some_tokens(TOKENS, 8), PagePolicy(3, 2, 3)
    wanted = last_rows(llama, CUTS, text, native(pages))
    for row, other in zip(last_rows(llama, CUTS, text, native(pages), world=2), wanted, strict=True):
        torch.testing.assert_close(row, other, atol=1e-4, rtol=0)


def test_recorded_decodes_read_the_same_pages(llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_graphs, "MIN_BLOCKS", 4)
    plans, pages = decode_plans(), PagePolicy(1, 1)
    wanted = plan_logits(llama, 1, plans, compute=plain(pages))
    found = plan_logits(llama, 1, plans, compute=plain(pages, EagerCapture()))
    for rows, others in zip(found, wanted, strict=True):
        torch.testing.assert_close(rows, others, atol=1e-4, rtol=0)


@pytest.mark.parametrize("mode", ["plain", "auto"])
def test_the_backend_names_the_policy(llama: Path, mode: str) -> None:
    def load(attention: str) -> tuple[str, str]:
        config = rank_config(llama, threads=1, kernels=mode, attention=attention)
        with open_checkpoint(llama) as checkpoint:
            backend = load_backend(config, read_config(llama), checkpoint, SingleRank())
        return backend.name, backend.kv_format

    name, kv_format = load("full")
    assert load("window=100,sinks=64,stride=16") == (
        f"{name}, attention window=112,sinks=64,stride=16",
        f"{kv_format}:w112:s64:p16",
    )
    with pytest.raises(ModelError, match=r"attention=all: must be `full`, or a window"):
        load("all")
