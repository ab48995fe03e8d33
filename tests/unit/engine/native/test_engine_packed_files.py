"""Packed weights in files: the same as in memory, made once, and made again when they are damaged."""

import errno
import fcntl
import multiprocessing
import os
import weakref
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from services.worker.engine.checkpoint.weight_files import Checkpoint, open_checkpoint
from services.worker.engine.checkpoint.weight_loader import open_source
from services.worker.engine.collectives.base import Collectives, SingleRank
from services.worker.engine.config.model import ModelConfig
from services.worker.engine.config.read_config import read_config
from services.worker.engine.native.build import targets
from services.worker.engine.native.compute import NativeCompute, NativeOptions
from services.worker.engine.native.layers.unsupported import unsupported
from services.worker.engine.native.library import kernels
from services.worker.engine.native.mapped import packed_dir, packed_room
from services.worker.engine.native.mapped.packed_dir import PackedDir
from services.worker.engine.native.mapped.packed_file import PackedFileError, read
from services.worker.engine.native.weights import NativeWeights
from services.worker.engine.rank.compute import Compute
from services.worker.rank_protocol.plan import StepPlan
from services.worker.rank_protocol.run_config import Precision
from services.worker.rank_protocol.sliding_pool import PoolSizes
from tests.kits.engine.gguf_models import write_gguf
from tests.kits.engine.rank_threads import (
    Blocks,
    make_model,
    native_ranks,
    new_sequence,
    plan_logits,
    run_threads,
    some_tokens,
)
from tests.kits.families.models import ENTRIES, each_once, family_model, served

pytestmark = pytest.mark.skipif(not targets(), reason="the kernels are for x86-64 with AVX2")
ONCE = each_once(served(ENTRIES))


@pytest.fixture(autouse=True)
def small_files(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(packed_room, "LEAST_BYTES", 0)
    yield
    while packed_dir.held_files:
        os.close(packed_dir.held_files.pop())


def differences(one: Any, other: Any, path: str = "weights") -> list[str]:
    """Where two trees differ; tensors by their bytes."""
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        same = one.dtype == other.dtype and one.shape == other.shape
        if same and torch.equal(one.contiguous().view(torch.uint8), other.contiguous().view(torch.uint8)):
            return []
        return [path]
    if type(one) is not type(other):
        return [path]
    if is_dataclass(one) and hasattr(one, "__slots__"):
        parts = [field.name for field in fields(one)]
        pairs = [(name, getattr(one, name), getattr(other, name)) for name in parts]
    elif isinstance(one, list):
        if len(one) != len(other):
            return [path]
        pairs = [(str(number), *both) for number, both in enumerate(zip(one, other, strict=True))]
    else:
        same = bytes(one) == bytes(other) if hasattr(one, "_fields_") else one == other
        return [] if same else [path]
    return [found for name, left, right in pairs for found in differences(left, right, f"{path}.{name}")]


def folder(path: Path, limit_bytes: int = 1 << 40, wait_s: float = 30.0) -> PackedDir:
    return PackedDir(path, limit_bytes, wait_s)


class Loads:
    """Loads a model's weights from a folder, and counts how often they are packed."""

    def __init__(self, model: Path, precision: Precision = "fp32", name: str = "model") -> None:
        self.model, self.precision, self.name, self.packed = model, precision, name, 0

    def __call__(self, packed: PackedDir, collectives: Collectives | None = None) -> NativeWeights:
        config, ranks = read_config(self.model), collectives or SingleRank()
        with open_checkpoint(self.model) as checkpoint:
            return packed.load(
                (self.name, self.precision, str(ranks.world)),
                config,
                1 << 16,
                ranks,
                self.pack(checkpoint, config, ranks),
            )

    def pack(
        self, checkpoint: Checkpoint, config: ModelConfig, collectives: Collectives
    ) -> Callable[[], NativeWeights]:
        def pack() -> NativeWeights:
            self.packed += 1
            return NativeWeights.load(
                open_source(checkpoint, config, collectives), config, kernels(), self.precision
            )

        return pack

    def in_memory(self) -> NativeWeights:
        with open_checkpoint(self.model) as checkpoint:
            return self.pack(checkpoint, read_config(self.model), SingleRank())()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("model"), "llama")


@pytest.mark.parametrize("name", ONCE)
def test_each_architecture_is_the_same_from_a_file(name: str, tmp_path: Path) -> None:
    model = family_model(name).directory
    if reason := unsupported(read_config(model)):
        pytest.skip(reason)
    loads = Loads(model)
    first, second = (loads(folder(tmp_path)) for _ in range(2))
    assert loads.packed == 1
    assert differences(loads.in_memory(), first) == []
    assert differences(first, second) == []


@pytest.mark.parametrize("precision", ["bf16", "int8", "codes"])
def test_each_precision_is_the_same_from_a_file(precision: Precision, model: Path, tmp_path: Path) -> None:
    if precision == "codes":
        whole_blocks = make_model(tmp_path / "model", "llama", hidden_size=96, intermediate_size=192)
        model = write_gguf(whole_blocks, tmp_path / "model.gguf", "Q4_0")
    loads = Loads(model, precision)
    wanted = loads.in_memory()
    assert differences(wanted, loads(folder(tmp_path / "packed"))) == []
    assert differences(wanted, loads(folder(tmp_path / "packed"))) == []
    assert loads.packed == 2


def test_what_it_says_is_the_same_bits(model: Path, tmp_path: Path) -> None:
    text = some_tokens(40, 1)
    plan = [StepPlan(step_id=1, admit=[new_sequence(1, text)], chunks=[Blocks(64).chunk(1, 0, text)])]

    def mapped(
        checkpoint: Checkpoint, config: ModelConfig, collectives: Collectives, num_blocks: int
    ) -> Compute:
        weights = Loads(model)(folder(tmp_path), collectives)
        options = NativeOptions(1, torch.float32, spin=False)
        return NativeCompute(
            kernels(), config, weights, collectives, sizes=PoolSizes(num_blocks), options=options
        )

    for world in (1, 2):
        wanted = plan_logits(model, world, plan, compute=native_ranks())[-1]
        for _ in range(2):
            assert torch.equal(plan_logits(model, world, plan, compute=mapped)[-1], wanted)
    assert len(list(tmp_path.glob("*.packed"))) == 3


def test_ranks_pack_again_when_one_of_them_has_no_file(model: Path, tmp_path: Path) -> None:
    """Packing ranks send each other tensors, so a rank that maps alone would leave the others waiting."""
    loads = Loads(model)
    run_threads(2, lambda ranks: loads(folder(tmp_path), ranks))
    next(tmp_path.glob("*-1.packed")).unlink()
    run_threads(2, lambda ranks: loads(folder(tmp_path), ranks))
    assert loads.packed == 4
    run_threads(2, lambda ranks: loads(folder(tmp_path), ranks))
    assert loads.packed == 4


def _change(file: Path, change: Callable[[bytearray], object]) -> None:
    data = bytearray(file.read_bytes())
    change(data)
    other = file.with_suffix(".changed")  # the file itself is mapped: a page that is cut off is a SIGBUS
    other.write_bytes(data)
    other.chmod(0o400)
    os.replace(other, file)


def _other(model: Path, folder_: Path, file: Path) -> None:
    """The file of other weights under the name of these."""
    Loads(model, name="other")(folder(folder_))
    other = next(one for one in folder_.glob("*.packed") if one != file)
    os.replace(other, file)


DAMAGES: dict[str, Callable[[Path, Path], object]] = {
    "a bit of a tensor": lambda file, _: _change(file, lambda data: data.__setitem__(8192, data[8192] ^ 4)),
    "a bit of the index": lambda file, _: _change(file, lambda data: data.__setitem__(-60, data[-60] ^ 4)),
    "cut off": lambda file, _: _change(file, lambda data: data.__delitem__(slice(-100, None))),
    "cut to nothing": lambda file, _: _change(file, lambda data: data.clear()),
    "not a file of packed weights": lambda file, _: _change(file, lambda data: data.__setitem__(0, 0)),
    "written by others": lambda file, _: file.chmod(0o420),
    "of other weights": lambda file, model: _other(model, file.parent, file),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_file_that_is_not_as_it_was_written_is_made_again(damage: str, model: Path, tmp_path: Path) -> None:
    loads = Loads(model)
    wanted = loads(folder(tmp_path))
    file = next(tmp_path.glob("*.packed"))
    DAMAGES[damage](file, model)
    assert differences(wanted, loads(folder(tmp_path))) == []
    assert loads.packed == 2
    assert file.stat().st_mode & 0o777 == 0o400
    loads(folder(tmp_path))
    assert loads.packed == 2


def test_a_link_is_not_followed(model: Path, tmp_path: Path) -> None:
    loads = Loads(model)
    loads(folder(tmp_path))
    file = next(tmp_path.glob("*.packed"))
    file.rename(tmp_path / "elsewhere")
    file.symlink_to(tmp_path / "elsewhere")
    loads(folder(tmp_path))
    assert loads.packed == 2
    assert not file.is_symlink()


def test_a_full_disk_is_a_warning(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    loads = Loads(model)
    assert differences(loads.in_memory(), loads(folder(tmp_path))) == []
    assert "No space left on device" in capsys.readouterr().out
    assert [one.suffix for one in tmp_path.iterdir()] == [".lock"]


def test_a_place_that_cannot_be_used_is_a_warning(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("no directory")
    loads = Loads(model)
    assert differences(loads.in_memory(), loads(folder(tmp_path / "file"))) == []
    assert loads.packed == 2
    assert "weights are not shared" in capsys.readouterr().out


def _pack_in_process(model: Path, path: Path, packed: Any) -> None:
    packed_room.LEAST_BYTES = 0
    loads = Loads(model)
    loads(folder(path))
    with packed.get_lock():
        packed.value += loads.packed


def test_groups_that_start_at_once_pack_once(model: Path, tmp_path: Path) -> None:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])  # torch is imported once
    packed = context.Value("i", 0)
    groups = [context.Process(target=_pack_in_process, args=(model, tmp_path, packed)) for _ in range(3)]
    for group in groups:
        group.start()
    for group in groups:
        group.join(120)
        assert group.exitcode == 0
    assert packed.value == 1


def test_the_packed_copy_is_gone_before_the_file_is_mapped(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copies, left = list[weakref.ref[torch.Tensor]](), list[bool]()
    loads = Loads(model)

    def watched_read(*args: Any) -> NativeWeights:
        left.append(any(copy() is not None for copy in copies))
        return read(*args)

    monkeypatch.setattr(packed_dir, "read", watched_read)
    with open_checkpoint(model) as checkpoint:
        config = read_config(model)
        make = loads.pack(checkpoint, config, SingleRank())

        def pack() -> NativeWeights:
            weights = make()
            copies.extend(weakref.ref(layer.attention.output.weights) for layer in weights.layers)
            return weights

        folder(tmp_path).load(("model",), config, 1 << 16, SingleRank(), pack)
    assert (len(copies), left) == (config.num_layers, [False])


def test_what_cannot_be_mapped_after_it_was_written_is_packed_again(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def damaged(*_: Any) -> NativeWeights:
        raise PackedFileError("its tensors are damaged")

    monkeypatch.setattr(packed_dir, "read", damaged)
    loads = Loads(model)
    assert differences(loads.in_memory(), loads(folder(tmp_path))) == []
    assert loads.packed == 3
    assert "packed weights are made again" in capsys.readouterr().out


def test_files_are_known_by_their_shares(model: Path, tmp_path: Path) -> None:
    loads, parts = Loads(model), ("model", "fp32", "1")
    assert not folder(tmp_path).has_files(parts, 1)
    loads(folder(tmp_path))
    assert folder(tmp_path).has_files(parts, 1)
    assert not folder(tmp_path).has_files(parts, 2)
    assert not folder(tmp_path).has_files(("another", "fp32", "1"), 1)


def test_a_group_that_waits_too_long_packs_for_itself(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    loads = Loads(model)
    loads(folder(tmp_path))
    next(tmp_path.glob("*.packed")).unlink()
    with next(tmp_path.glob("*.lock")).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        loads(folder(tmp_path, wait_s=0.1))
        assert not list(tmp_path.glob("*.packed"))
        assert "another group takes too long" in capsys.readouterr().out
    loads(folder(tmp_path))
    assert (loads.packed, len(list(tmp_path.glob("*.packed")))) == (3, 1)


def test_what_nobody_uses_makes_room(model: Path, tmp_path: Path) -> None:
    """The longest unused file goes first; one in use stays, and then others are not kept."""
    for age, name in enumerate(("newest", "older", "oldest")):
        Loads(model, name=name)(folder(tmp_path))
        file = max(tmp_path.glob("*.packed"), key=lambda one: one.stat().st_ctime_ns)
        (tmp_path / name).symlink_to(file)
        os.utime(file, (0, 1_000_000 - age))
    while packed_dir.held_files:
        os.close(packed_dir.held_files.pop())
    size = (tmp_path / "newest").stat().st_size
    Loads(model, name="further")(folder(tmp_path, limit_bytes=3 * size))
    exists = {name: (tmp_path / name).exists() for name in ("newest", "older", "oldest")}
    assert exists == {"newest": True, "older": True, "oldest": False}
    loads = Loads(model, name="too much")
    loads(folder(tmp_path, limit_bytes=size // 4))
    assert len(list(tmp_path.glob("*.packed"))) == 1  # that of `further`, which is in use
    assert loads.packed == 1
