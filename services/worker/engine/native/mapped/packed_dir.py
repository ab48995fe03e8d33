"""Packed weights in one directory of a host: made once, and mapped by each group of the model.

A rank maps the file of its share. Where there is none, one group packs and those that want the same wait. A
mapped file is in the page cache once, whoever maps it, and the system can take that memory back. A file that
cannot be made or is not as it was written is never an end: the rank packs in its own memory, with a warning.
"""

import fcntl
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from hashlib import blake2b
from pathlib import Path

import structlog
import torch

from services.worker.engine.collectives.base import Collectives
from services.worker.engine.config.model import ModelConfig
from services.worker.engine.huge_pages import release_memory
from services.worker.engine.native.mapped import packed_room
from services.worker.engine.native.mapped.packed_file import PackedFileError, read, write
from services.worker.engine.native.mapped.packed_room import FREE_BYTES, SUFFIX
from services.worker.engine.native.weights import NativeWeights

log = structlog.get_logger(__name__)

_LOOK_S = 0.05  # between looks whether another rank has made the file
_GO, _WAIT, _ALONE = b"go", b"wait", b"alone"
held_files: list[int] = []  # descriptors with a lock, by which others see that a file is in use


@dataclass(frozen=True, slots=True)
class _Wanted:
    """The file of a rank's share."""

    file: Path
    config: ModelConfig
    key: str
    num_bytes: int


@dataclass(frozen=True, slots=True)
class PackedDir:
    """Where the files are.

    Attributes:
        path: The directory; made if it is not there.
        limit_bytes: Files that nobody uses are removed, the longest unused one first, while there is more.
        wait_s: How long a rank waits for another one that packs the same.
        threads: For checksums.
    """

    path: Path
    limit_bytes: int
    wait_s: float
    threads: int = 1

    def load(
        self,
        parts: Sequence[str],
        config: ModelConfig,
        num_bytes: int,
        collectives: Collectives,
        pack: Callable[[], NativeWeights],
    ) -> NativeWeights:
        """Returns this rank's weights, mapped if that is possible. All ranks call it.

        Args:
            parts: All that the packed bytes of the ranks depend on.
            num_bytes: About how many a rank has.
            collectives: Connects the ranks: either all map, or all pack, since packing ranks send each other
                tensors.
            pack: Packs them in memory.

        Raises:
            ModelError: Of `pack`.
            CollectiveError: A rank is late.
        """
        if num_bytes < packed_room.LEAST_BYTES:
            return pack()
        key = _key(parts)
        wanted = _Wanted(self.path / f"{key}-{collectives.rank}{SUFFIX}", config, key, num_bytes)
        found = self._map_all(wanted, collectives)
        if found is not None:
            return found
        with self._turn(self.path / f"{key}.lock", collectives) as is_ours:
            found = self._map_all(wanted, collectives)  # another group has made the files meanwhile
            if found is not None:
                return found
            packed = pack()
            if not self._keep_all(wanted, packed, collectives, is_ours=is_ours):
                return packed
            del packed  # before the file is mapped: groups of a host have memory for one copy
            release_memory()
            found = self._map_all(wanted, collectives)
        return pack() if found is None else found

    def has_files(self, parts: Sequence[str], ranks: int) -> bool:
        """Whether there are files of the shares of the first ranks."""
        return all((self.path / f"{_key(parts)}-{rank}{SUFFIX}").exists() for rank in range(ranks))

    def _map_all(self, wanted: "_Wanted", collectives: Collectives) -> NativeWeights | None:
        """This rank's weights, if each rank has a file of its own share."""
        found = self._map(wanted)
        count = torch.tensor([float(found is not None)])
        collectives.all_reduce_sum(count)
        if found is None:
            return None
        weights, fd = found
        if int(count) < collectives.world:
            os.close(fd)
            return None
        held_files.append(fd)
        return weights

    def _map(self, wanted: "_Wanted") -> tuple[NativeWeights, int] | None:
        """The weights of a file and its descriptor; None if there is none. A damaged one is removed."""
        try:
            fd = os.open(wanted.file, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            log.warning("weights are not shared", path=str(wanted.file), why=error.strerror)
            return None
        try:
            fcntl.flock(fd, fcntl.LOCK_SH)
            weights = read(fd, wanted.config, wanted.key, self.threads)
        except (OSError, PackedFileError) as error:
            os.close(fd)
            log.warning("packed weights are made again", path=str(wanted.file), why=str(error))
            with suppress(OSError):
                wanted.file.unlink()
            return None
        with suppress(OSError):
            os.utime(fd)  # tells when it was used last
        return weights, fd

    @contextmanager
    def _turn(self, path: Path, collectives: Collectives) -> Iterator[bool]:
        """Waits until no other group makes these files; False: files cannot be made, or not in time.

        Rank 0 holds the lock for its group. The others hear from it again and again, so that a collective
        operation does not take as long as the other group.
        """
        fd, until = self._open_lock(path) if collectives.rank == 0 else -1, time.monotonic() + self.wait_s
        try:
            while True:
                said = collectives.broadcast(_try_lock(fd, until, path))
                if said != _WAIT:
                    break
                time.sleep(_LOOK_S)
            yield said == _GO
        finally:
            if fd >= 0:
                os.close(fd)

    def _open_lock(self, path: Path) -> int:
        try:
            self.path.mkdir(parents=True, exist_ok=True, mode=0o700)
            return os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        except OSError as error:
            log.warning("weights are not shared", path=str(self.path), why=error.strerror)
            return -1

    def _keep_all(
        self, wanted: "_Wanted", packed: NativeWeights, collectives: Collectives, *, is_ours: bool
    ) -> bool:
        """Writes this rank's file; True if each rank has written its own."""
        count = torch.tensor([float(is_ours and self._keep(wanted, packed))])
        collectives.all_reduce_sum(count)
        return int(count) == collectives.world

    def _keep(self, wanted: "_Wanted", packed: NativeWeights) -> bool:
        """Writes a file; False if that cannot be done."""
        try:
            self.path.mkdir(parents=True, exist_ok=True, mode=0o700)  # of a rank on another host
            self._make_room(wanted)
            self._write(wanted, packed)
        except OSError as error:
            log.warning("weights are not shared", path=str(wanted.file), why=error.strerror or str(error))
            return False
        return True

    def _write(self, wanted: "_Wanted", weights: NativeWeights) -> None:
        """Writes the whole file under another name first."""
        fd, name = tempfile.mkstemp(dir=self.path, prefix=".new-")
        try:
            with open(fd, "w+b") as new:
                write(new, weights, wanted.config, wanted.key)
                os.fsync(new.fileno())
            os.chmod(name, 0o400)
            os.replace(name, wanted.file)
        except BaseException:
            with suppress(OSError):
                os.unlink(name)
            raise

    def _make_room(self, wanted: "_Wanted") -> None:
        """Removes files that nobody uses, the longest unused one first.

        Raises:
            OSError: There is no room.
        """
        num_bytes = wanted.num_bytes
        files = sorted(_files(self.path), key=lambda one: one[1])
        total = sum(size for _, _, size in files) + num_bytes
        disk = os.statvfs(self.path)
        missing = num_bytes + FREE_BYTES - disk.f_bavail * disk.f_frsize
        for path, _, size in files:
            if total <= self.limit_bytes and missing <= 0:
                return
            if path != wanted.file and _remove_unused(path):
                total, missing = total - size, missing - size
                log.info("packed weights removed", path=str(path), why="others need the room")
        if total > self.limit_bytes or missing > 0:
            raise OSError(f"no room for {num_bytes / 2**20:,.0f} MiB in {self.path}")


def _files(directory: Path) -> Iterator[tuple[Path, float, int]]:
    """Each file with the time of its last use and its size; what a killed rank left behind is removed."""
    for entry in os.scandir(directory):
        with suppress(OSError):
            found = entry.stat(follow_symlinks=False)
            if entry.name.endswith(SUFFIX):
                yield Path(entry.path), found.st_mtime, found.st_size
            elif entry.name.startswith(".new-") and time.time() - found.st_mtime > 3600:
                os.unlink(entry.path)


def _remove_unused(path: Path) -> bool:
    with suppress(OSError):
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path.unlink()
        finally:
            os.close(fd)
        return True
    return False


def _try_lock(fd: int, until: float, path: Path) -> bytes:
    """What rank 0 says to the others."""
    if fd < 0:
        return _ALONE
    with suppress(BlockingIOError):
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return _GO
    if time.monotonic() < until:
        return _WAIT
    log.warning("weights are not shared", path=str(path), why="another group takes too long to pack them")
    return _ALONE


def _key(parts: Sequence[str]) -> str:
    """What the names of the files begin with."""
    return blake2b("\0".join((_sources(), *parts)).encode(), digest_size=16).hexdigest()


@cache
def _sources() -> str:
    """A hash of the engine's sources, since they decide what packed bytes mean."""
    root = Path(__file__).parents[2]
    digest = blake2b(digest_size=16)
    for path in sorted(root.rglob("*.py")):
        digest.update(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()
