"""The choice of a rank's compute backend, the agreement among ranks, and every refusal."""

from pathlib import Path
from typing import Any

import pytest
import torch
from structlog.testing import capture_logs
from torch import Tensor

from services.worker.engine.checkpoint.weight_files import open_checkpoint
from services.worker.engine.collectives.base import Collectives, SingleRank
from services.worker.engine.config.json_fields import ModelError
from services.worker.engine.config.read_config import read_config
from services.worker.engine.native.build import NoKernels, targets
from services.worker.engine.native.compute import NativeCompute
from services.worker.engine.native.library import MAX_HEAD_DIM, kernels
from services.worker.engine.rank import backend, cache_room
from services.worker.engine.rank.backend import ComputeBackend, load_backend
from services.worker.engine.rank.runner import Runner
from services.worker.rank_protocol.plan import StepPlan
from services.worker.rank_protocol.rank_messages import RankConfig
from services.worker.rank_protocol.sliding_pool import PoolSizes
from tests.kits.engine.rank_options import rank_config
from tests.kits.engine.rank_threads import Blocks, make_llama, new_sequence, plan_logits, run_threads
from tests.kits.families.comparisons import MODES
from tests.kits.families.models import family_model

TEXT = list(range(40, 90))
WHY = "no C++ compiler was found; install g++"


@pytest.fixture
def compiled() -> str:
    """The best instruction set of this machine; skips the test where the kernels cannot run."""
    try:
        return kernels().target
    except NoKernels as error:
        return pytest.skip(f"no compiled kernels here: {error}")


@pytest.fixture
def none_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes this a machine that has no kernels and cannot compile them."""

    def refuse() -> None:
        raise NoKernels(WHY)

    monkeypatch.setattr(backend, "kernels", refuse)


def config(model: Path, rank: int = 0, world: int = 1, **changes: Any) -> RankConfig:
    fields: dict[str, Any] = {
        "threads": 1,
        "collectives": "shm",
        "kv_cache_tokens": 1024,
    }
    return rank_config(model, rank=rank, tensor_parallel=world, **(fields | changes))


def load(settings: RankConfig, collectives: Collectives) -> ComputeBackend:
    directory = Path(settings.run.model)
    with open_checkpoint(directory) as checkpoint:
        return load_backend(settings, read_config(directory), checkpoint, collectives)


def plan() -> StepPlan:
    return StepPlan(
        step_id=1, admit=[new_sequence(1, TEXT)], chunks=[Blocks(64).chunk(1, 0, TEXT)], release=[]
    )


def logits_of(loaded: ComputeBackend) -> Tensor:
    """Rank 0's logits of `plan()`."""
    compute = loaded.start(PoolSizes(64))
    rows = Runner(compute).compute_logits(plan())[1]
    result = torch.empty(0) if rows is None else rows.clone()
    if isinstance(compute, NativeCompute):
        compute.close()
    return result


def plain_logits(model: Path, world: int) -> Tensor:
    """Logits of `plan()` by the plain path as it serves on CPUs."""
    return plan_logits(model, world, [plan()], 64, MODES["tiled"])[0]


@pytest.mark.parametrize(
    ("changes", "name", "near"),
    [
        ({}, "native {}, float32 KV", 1e-4),
        ({"kernels": "native"}, "native {}, float32 KV", 1e-4),
        *(({"kernels": target}, f"native {target}, float32 KV", 1e-4) for target in targets()),
        ({"kv_dtype": "fp16"}, "native {}, float16 KV", 0.1),
        ({"precision": "int8"}, "native {} int8, float16 KV", 1.0),
        ({"precision": "int8", "kv_dtype": "fp32"}, "native {} int8, float32 KV", 1.0),
        ({"kv_cold": "fp8", "kv_hot_tokens": 0}, "native {}, float32 KV, fp8 behind", 1.0),
        ({"kv_cold": "fp8", "kv_dtype": "fp16"}, "native {}, float16 KV, fp8 behind", 1.0),
        ({"kernels": "plain"}, "plain", 0.0),
        ({"kernels": "plain", "kv_dtype": "fp32"}, "plain", 0.0),
    ],
)
def test_every_choice_computes_what_it_says(
    model: Path, compiled: str, changes: dict[str, Any], name: str, near: float
) -> None:
    loaded = load(config(model, **changes), SingleRank())
    assert loaded.name == name.format(compiled)
    assert loaded.kv_format.partition("+")[0] == ("fp16" if "float16" in name else "fp32")
    assert ("+fp8" in loaded.kv_format) == ("fp8" in name)
    wanted = plain_logits(model, 1)
    found = logits_of(loaded)
    torch.testing.assert_close(found, wanted, atol=near, rtol=0)
    if name != "plain":
        assert not torch.equal(found, wanted)  # otherwise the plain backend computed it


def test_half_the_cache_takes_half_the_memory(model: Path, compiled: str) -> None:
    whole = load(config(model), SingleRank())
    half = load(config(model, kv_dtype="fp16"), SingleRank())
    assert half.block_bytes * 2 == whole.block_bytes


@pytest.mark.parametrize(("remote_ranks", "heads"), [(0, 4), (1, 3), (2, 2)])
def test_blocks_are_counted_for_the_kv_heads_of_this_host(
    model: Path, monkeypatch: pytest.MonkeyPatch, remote_ranks: int, heads: int
) -> None:
    """Three ranks have 2, 1 and 1 KV heads; a block takes 4,096 bytes of rank 0."""
    monkeypatch.setattr(cache_room, "available_bytes", lambda: 2**20)
    settings = config(model, 0, 3, remote_ranks=remote_ranks, kv_cache_tokens=0, kv_memory_share=0.5)
    loaded = ComputeBackend("native", 4096, lambda _: pytest.fail("it computes nothing"))
    sizes = cache_room.agreed_sizes(settings, read_config(model), loaded, SingleRank())
    assert sizes == (2**19 // (2048 * heads), 0)


def test_a_cold_zone_is_named_and_counted(model: Path, compiled: str) -> None:
    half = load(config(model, kv_dtype="fp16"), SingleRank())
    cold = load(config(model, kv_dtype="fp16", kv_cold="fp8", max_running=5), SingleRank())
    assert cold.kv_format == "fp16+fp8:16:all"
    scales = 2 * 4 * 3 * 4  # keys and values, fp32, layers, heads
    assert cold.block_bytes == half.block_bytes // 2 + scales
    # two blocks per sequence, and 64 for the prompts of one pass
    assert cold.hot_bytes == (2 * 5 + 64) * half.block_bytes
    some = load(config(model, kv_cold="fp8", kv_hot_tokens=20, kv_cold_layers="0,2-2"), SingleRank())
    assert some.kv_format == "fp32+fp8:32:0,2"
    # one layer in fp32, two in fp8
    assert some.block_bytes == 2 * half.block_bytes // 3 + 2 * (half.block_bytes // 6 + scales // 3)


def test_cold_layers_are_checked_before_weights_are_read(model: Path) -> None:
    for rank in (0, 1):
        asked = config(model, rank, kv_cold="fp8", kv_cold_layers="0-3")
        with pytest.raises(ModelError, match=r"kv_cold_layers=0-3: '0-3' is no layer, nor a range"):
            load(asked, SingleRank())


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"precision": "int8"}, "precision=int8"),
        ({"kv_dtype": "fp16"}, "kv_dtype=fp16"),
        ({"kv_cold": "fp8"}, "kv_cold=fp8"),
        ({"precision": "int8", "kv_dtype": "fp16"}, "precision=int8"),
    ],
)
def test_what_only_kernels_have_is_refused_beside_plain(
    model: Path, changes: dict[str, Any], named: str
) -> None:
    with pytest.raises(ModelError) as refused:
        load(config(model, kernels="plain", **changes), SingleRank())
    assert str(refused.value) == f"{named} needs the native kernels; set kernels=auto, not plain"


@pytest.mark.usefixtures("none_here")
@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"kernels": "native"}, "kernels=native"),
        ({"kernels": "native", "precision": "int8"}, "kernels=native"),
        ({"precision": "int8"}, "precision=int8"),
        ({"kv_dtype": "fp16"}, "kv_dtype=fp16"),
        ({"kv_cold": "fp8"}, "kv_cold=fp8"),
    ],
)
def test_a_wish_that_cannot_be_had_is_refused(model: Path, changes: dict[str, Any], named: str) -> None:
    with pytest.raises(ModelError) as refused:
        load(config(model, **changes), SingleRank())
    assert str(refused.value) == f"{named} cannot be had here: {WHY}"


def test_an_instruction_set_that_the_processor_lacks_is_refused(
    model: Path, compiled: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backend, "targets", lambda: ["avx2"])
    assert load(config(model, kernels="avx2"), SingleRank()).name == "native avx2, float32 KV"
    with pytest.raises(ModelError, match="kernels=avx512 cannot be had here: this processor has no avx512"):
        load(config(model, kernels="avx512"), SingleRank())


@pytest.mark.usefixtures("none_here")
def test_auto_serves_without_and_says_so_once(model: Path) -> None:
    def one(collectives: Collectives) -> tuple[str, Tensor]:
        loaded = load(config(model, collectives.rank, 2), collectives)
        return loaded.name, logits_of(loaded)

    with capture_logs() as logs:
        (name, found), (other, _) = run_threads(2, one)
    assert name == other == "plain"
    assert torch.equal(found, plain_logits(model, 2))
    (warning,) = [entry for entry in logs if entry["log_level"] == "warning"]
    assert warning["event"] == "computing without compiled kernels, which is several times slower"
    assert warning["why"] == WHY


@pytest.mark.usefixtures("none_here")
def test_plain_by_choice_is_no_warning(model: Path) -> None:
    with capture_logs() as logs:
        assert load(config(model, kernels="plain"), SingleRank()).name == "plain"
    assert logs == []


@pytest.mark.skipif(not targets(), reason="the kernels are for x86-64 with AVX2")
@pytest.mark.parametrize("kernels_wanted", ["native", "auto"])
def test_heads_too_wide_for_the_kernels(tmp_path: Path, kernels_wanted: str) -> None:
    width = MAX_HEAD_DIM + 16
    wide = make_llama(tmp_path, head_dim=width, num_attention_heads=2, num_key_value_heads=1)
    if kernels_wanted == "native":
        with pytest.raises(ModelError, match=f"heads of at most {MAX_HEAD_DIM} dimensions, not {width}"):
            load(config(wide, kernels="native"), SingleRank())
    else:
        loaded = load(config(wide), SingleRank())
        assert loaded.name == "plain"
        assert torch.equal(logits_of(loaded), plain_logits(wide, 1))


def without_kernels_on(rank_without: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulates ranks on two machines, where the machine of one rank has no kernels."""
    choose = backend.find_kernels
    monkeypatch.setattr(
        backend, "find_kernels", lambda *args: (None, "") if args[0].rank == rank_without else choose(*args)
    )


def test_rank_0_without_kernels_makes_all_plain(
    model: Path, compiled: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_kernels_on(0, monkeypatch)

    def one(collectives: Collectives) -> tuple[str, Tensor]:
        loaded = load(config(model, collectives.rank, 2), collectives)
        return loaded.name, logits_of(loaded)

    (name, found), (other, _) = run_threads(2, one)
    assert name == other == "plain"
    assert torch.equal(found, plain_logits(model, 2))


def test_another_rank_without_kernels_is_refused(
    model: Path, compiled: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_kernels_on(1, monkeypatch)
    with pytest.raises(ModelError, match=r"rank 0 computes with the native kernels, .* set kernels=plain"):
        run_threads(2, lambda collectives: load(config(model, collectives.rank, 2), collectives))


def test_what_the_kernels_do_not_compute_is_computed_in_plain_operations(compiled: str) -> None:
    """Where the kernels were asked for, such a model is refused."""
    latent = family_model("deepseek_v3").directory
    assert load(config(latent), SingleRank()).name == "plain"
    with pytest.raises(ModelError, match=r"kernels=native cannot be had here: .* latent attention"):
        load(config(latent, kernels="native"), SingleRank())
