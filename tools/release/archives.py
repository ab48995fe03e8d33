"""Archives that are equal whenever and wherever they are made of equal files, and their checksums."""

import gzip
import hashlib
import io
import tarfile
from collections.abc import Iterable
from pathlib import Path


def repack(sdist: Path, made_s: int) -> None:
    """Write an sdist anew with one time, one owner and sorted files; setuptools takes the machine's."""
    with tarfile.open(sdist) as old:
        files = [
            (member, _content(old, member)) for member in sorted(old.getmembers(), key=lambda one: one.name)
        ]
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as new:
        for member, content in files:
            member.mtime, member.pax_headers = made_s, {}
            member.uid = member.gid = 0
            member.uname = member.gname = ""
            member.mode = 0o755 if member.isdir() or member.mode & 0o100 else 0o644
            new.addfile(member, io.BytesIO(content))
    with sdist.open("wb") as file, gzip.GzipFile("", "wb", mtime=made_s, fileobj=file) as zipped:
        zipped.write(packed.getvalue())


def _content(archive: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    file = archive.extractfile(member) if member.isfile() else None
    return file.read() if file is not None else b""


def checksums(files: Iterable[Path]) -> str:
    """Return lines that `sha256sum --check` takes."""
    lines = []
    for path in sorted(files):
        with path.open("rb") as file:
            lines.append(f"{hashlib.file_digest(file, 'sha256').hexdigest()}  {path.name}\n")
    return "".join(lines)
