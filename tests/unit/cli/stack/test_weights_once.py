"""Groups that map the same packed weights are counted with one copy of them, and others with one each."""

import fcntl
import os
import re
from dataclasses import replace
from pathlib import Path

import pytest

from cli.stack.fleet.plan_text import NamedNeeds, refuse_fleet
from cli.stack.machine_facts import machine_facts
from cli.stack.memory_needs import (
    GROUP_BYTES,
    GivenSizing,
    MachineFacts,
    ModelNeeds,
    loading_bytes,
    process_bytes,
    share_weights,
    weight_bytes,
)
from cli.stack.sizing import DoesNotFit, choose_sizing, choose_sizings, missing_bytes, sizing_of, sizings_of
from cli.stack.sizing_text import describe_sizing, refusal
from services.worker.engine.checkpoint.model_size import ModelSize
from services.worker.engine.native.mapped import packed_room
from services.worker.engine.native.mapped.packed_room import FREE_BYTES, LEAST_BYTES
from tests.kits.supervisor import options

GIB = 2**30
SIZE = ModelSize(5 * GIB - GIB // 8, GIB // 8, 10_000, False, 1, 32_768, stored="codes", code_bytes=1.0)
WEIGHTS = SIZE.weight_bytes("codes")
OPEN, TWO = GivenSizing(), GivenSizing(groups=2)
ONCE = MachineFacts(cores=4, free_bytes=64 * GIB, kernels=True, packed_bytes=50 * GIB)
COPIES = replace(ONCE, packed_bytes=0)


def needs(size: ModelSize = SIZE, given: GivenSizing = OPEN) -> ModelNeeds:
    return ModelNeeds(size, 8192, given)


def with_room(machine: MachineFacts, room: int) -> MachineFacts:
    """The machine with so many bytes for groups and stores."""
    return replace(machine, free_bytes=-(-room * 100 // 95) + 1)


def test_two_groups_fit_where_copies_of_the_weights_do_not() -> None:
    room = int(1.6 * WEIGHTS)
    assert choose_sizing(SIZE, 8192, with_room(COPIES, room), OPEN).groups == 1
    sizing = choose_sizing(SIZE, 8192, with_room(ONCE, room), OPEN)
    assert (sizing.groups, sizing.shares_weights, sizing.weight_bytes) == (2, True, WEIGHTS)
    assert "weights once for both" in describe_sizing(sizing, SIZE, ONCE)
    kv = sizing.needed_bytes - WEIGHTS - 2 * GROUP_BYTES
    assert kv == 2 * SIZE.cache_bytes(SIZE.pools(sizing.kv_cache_tokens, 512, 128), "codes")
    assert sizing.needed_bytes <= room


@pytest.mark.parametrize(
    ("machine", "size", "given"),
    [
        (replace(ONCE, packed_bytes=WEIGHTS - 1), SIZE, TWO),
        (replace(ONCE, kernels=False), replace(SIZE, stored="fp32"), TWO),
        (ONCE, replace(SIZE, latent=True, stored="fp32"), TWO),
        (ONCE, SIZE, replace(TWO, tensor_parallel=-(-WEIGHTS // LEAST_BYTES))),
        (ONCE, SIZE, replace(TWO, groups=1)),
    ],
    ids=["the directory has no room", "no kernels", "latent attention", "small shares", "one group"],
)
def test_where_mapping_is_not_certain_each_group_has_a_copy(
    machine: MachineFacts, size: ModelSize, given: GivenSizing
) -> None:
    one = needs(size, given)
    assert share_weights([one], machine, [given.groups]) == [False]
    assert weight_bytes([one], machine, [given.groups]) == weight_bytes([one], COPIES, [given.groups]) or (
        not machine.kernels
    )
    sizing = sizing_of(size, 8192, machine, given, given.groups)
    assert sizing is not None
    assert sizing.weight_bytes == given.groups * size.weight_bytes(sizing.precision)
    assert "weights once" not in describe_sizing(sizing, size, machine)


def test_ranks_of_a_group_share_what_their_groups_share() -> None:
    (once,) = weight_bytes([needs(given=replace(TWO, tensor_parallel=4))], ONCE, [2])
    assert once == WEIGHTS, "each rank has its part of the one copy"


def test_one_more_byte_of_weights_does_not_fit() -> None:
    least = WEIGHTS + 2 * (GROUP_BYTES + 2048 * SIZE.kv_token_bytes("codes"))
    exact = replace(ONCE, free_bytes=int(least / 0.95))
    exact = replace(exact, free_bytes=exact.free_bytes + least - exact.room_bytes)
    found = choose_sizing(SIZE, 8192, exact, OPEN)
    assert (found.groups, found.kv_cache_tokens, found.needed_bytes) == (2, 2048, least)
    short = replace(exact, free_bytes=exact.free_bytes - 2)
    assert choose_sizing(SIZE, 8192, short, OPEN).groups == 1
    assert sizing_of(SIZE, 8192, short, TWO, 2) is None
    assert 0 < missing_bytes([needs()], short, [2]) <= 4
    message = refusal(SIZE, 8192, short, TWO)
    assert "2 groups would need" in message
    assert "for weights, which they share, and each" in message
    assert "`--groups 1`" in message


def test_the_matrix_that_is_read_while_a_group_packs_has_to_fit() -> None:
    wide = replace(SIZE, embedding=2 * GIB, kv_values=512)
    peak = wide.weight_bytes("codes") + 2 * GROUP_BYTES + 3 * GIB
    assert loading_bytes([needs(wide)], ONCE, [2]) == peak
    assert loading_bytes([needs(wide)], ONCE, [1]) == peak - GROUP_BYTES - 3 * GIB, "as before with one group"
    assert sizing_of(wide, 8192, with_room(ONCE, peak), OPEN, 2)
    short = with_room(ONCE, peak - 2**20)
    assert choose_sizing(wide, 8192, short, OPEN).groups == 1
    missing = missing_bytes([needs(wide)], short, [2])
    assert 0 < missing < 2 * 2**20
    assert sizing_of(wide, 8192, replace(short, free_bytes=short.free_bytes + 2 * missing), OPEN, 2)
    message = refusal(wide, 8192, short, TWO)
    assert re.search(r"While one of them packs the weights, they need 1\d\.\d GiB\. Free", message)


def test_models_beside_each_other_count_each_their_own_weights_once() -> None:
    both = [needs(given=TWO), needs(replace(SIZE, vocabulary=262_144), TWO)]
    counts = [2, 2]
    assert weight_bytes(both, ONCE, counts) == [WEIGHTS, WEIGHTS]
    assert weight_bytes(both, replace(ONCE, packed_bytes=2 * WEIGHTS - 1), counts) == [2 * WEIGHTS] * 2
    larger = process_bytes(both[1].size)
    assert larger > GROUP_BYTES
    room = int(3 * WEIGHTS)
    assert sizings_of(both, with_room(COPIES, room), counts) is None
    found = choose_sizings(both, with_room(ONCE, room))
    assert [one.groups for one in found] == counts
    assert sum(one.needed_bytes for one in found) <= room
    tight = with_room(ONCE, 2 * WEIGHTS)
    with pytest.raises(DoesNotFit):
        choose_sizings(both, tight)
    message = refuse_fleet([NamedNeeds("a", both[0]), NamedNeeds("b", both[1])], tight)
    assert re.search(r"a 6\.\d GiB \(2 groups that share 5\.0 GiB of weights", message)


def test_room_is_what_the_directory_and_the_disk_have(tmp_path: Path) -> None:
    disk = os.statvfs(tmp_path)
    free = disk.f_bavail * disk.f_frsize - FREE_BYTES
    new = tmp_path / "to" / "be made"
    assert packed_room.packed_room(new, 1000) == min(1000, max(0, free))
    assert not new.exists()
    assert packed_room.packed_room(new, 2**60) == pytest.approx(max(0, free), abs=GIB)
    file = tmp_path / "file"
    file.write_text("no directory")
    assert packed_room.packed_room(file, 1000) == 0
    assert packed_room.packed_room(file / "below", 1000) == 0


def test_files_that_a_rank_has_mapped_keep_their_room(tmp_path: Path) -> None:
    (tmp_path / "one.packed").write_bytes(bytes(300))
    used = tmp_path / "other.packed"
    used.write_bytes(bytes(200))
    with used.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_SH)
        assert packed_room.packed_room(tmp_path, 1000) == 800
    assert packed_room.packed_room(tmp_path, 1000) == 1000


def test_a_place_without_leave_to_write_has_no_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: path != tmp_path)  # root may write anywhere
    assert packed_room.packed_room(tmp_path, 1000) == 0
    assert packed_room.packed_room(tmp_path / "new", 1000) == 0


def test_up_looks_where_its_workers_will(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = options(tmp_path, engine="torch", kernels="auto")
    monkeypatch.setenv("RYZ_PACKED_DIR", str(tmp_path))
    monkeypatch.setenv("RYZ_PACKED_DIR_GIB", "0.001")
    assert machine_facts(given).packed_bytes == int(0.001 * GIB)
    monkeypatch.setenv("RYZ_PACKED_DIR_GIB", "some")
    assert machine_facts(given).packed_bytes == 0, "the workers refuse it"
    monkeypatch.delenv("RYZ_PACKED_DIR_GIB")
    assert machine_facts(replace(given, engine="null")).packed_bytes == 0
    monkeypatch.setenv("RYZ_PACKED_DIR", "")
    assert machine_facts(given).packed_bytes == 0
    monkeypatch.delenv("RYZ_PACKED_DIR")
    monkeypatch.setenv("RYZ_MODELS_DIR", str(tmp_path / "models"))
    room = machine_facts(given).packed_bytes
    assert room == packed_room.packed_room(tmp_path / "models" / ".packed", 50 * GIB) or room > 0
