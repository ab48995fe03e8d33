"""Fetches one wheel with pip's own client, and goes on with the part that an earlier run has left.

`wheels.py` runs this file as a script. `pip download` cannot go on with a part of a file. Therefore the
link comes from pip's finder and the bytes from pip's session, which use the indexes, credentials, proxies and
certificates of pip's configuration. These parts of pip are not a stable interface: where they have changed,
the script ends with `NOT_THIS_PIP`, and `pip download` is used.
"""

import json
import re
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

CUT, NO_SUCH_FILE, NOT_THIS_PIP, DISK = 10, 11, 12, 13  # exit codes
_OPTIONS = ["--no-deps", "--only-binary=:all:", "--no-cache-dir", "--no-input", "--retries=1", "-qq"]
_CHUNK = 1 << 16


class FetchEnd(Exception):
    """The fetch ends with this code; the text says why."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


def main() -> None:
    """Fetch `PROJECT VERSION PART SIZE`; what went wrong is the one line of standard output."""
    project, version, part, size = sys.argv[1:]
    try:
        fetch(project, version, Path(part), int(size))
    except FetchEnd as end:
        print(json.dumps(str(end)))
        sys.exit(end.code)


def fetch(project: str, version: str, part: Path, size: int) -> None:
    """Append to `part` what it lacks of the project's wheel, at most up to one byte more than `size`."""
    ends = list[FetchEnd]()
    try:
        from pip._internal.commands import create_command  # noqa: PLC0415
        from pip._vendor.packaging.specifiers import SpecifierSet  # noqa: PLC0415

        command: Any = create_command("download")
    except (ImportError, AttributeError) as error:
        raise FetchEnd(NOT_THIS_PIP, str(error)) from error

    def run(options: Any, _: Any) -> int:
        try:
            try:
                session = command.get_default_session(options)
                finder = command._build_package_finder(options=options, session=session)
                best = finder.find_best_candidate(project, SpecifierSet(f"=={version}")).best_candidate
                indexes = list(finder.index_urls)
                url = best.link.url_without_fragment if best else ""
            except (AttributeError, TypeError) as error:
                raise FetchEnd(NOT_THIS_PIP, f"{type(error).__name__}: {error}") from error
            if best is None:
                _say_why(session, indexes, project, version)
            _append(session, url, part, size)
        except FetchEnd as end:
            ends.append(end)
        return 0

    command.run = run
    command.main(_OPTIONS)
    if ends:
        raise ends[0]


def _say_why(session: Any, indexes: list[str], project: str, version: str) -> None:
    """Tell an index that lacks the wheel from one that cannot be reached: pip's finder passes over both."""
    for index in indexes:
        try:
            with closing(session.get(f"{index.rstrip('/')}/{project}/", stream=True)) as answer:
                if answer.status_code >= 500:
                    raise FetchEnd(CUT, f"{_host(index)} answers with status {answer.status_code}")
                if answer.status_code in {401, 403, 407}:
                    raise FetchEnd(NO_SUCH_FILE, f"{_host(index)} answers with status {answer.status_code}")
        except OSError as error:  # requests' errors are of this kind
            raise FetchEnd(CUT, f"{_host(index)} cannot be reached ({_reason(error)})") from error
    names = ", ".join(_host(index) for index in indexes) or "pip's settings name no index"
    raise FetchEnd(NO_SUCH_FILE, f"the package index has no wheel {project}=={version} ({names})")


def _append(session: Any, url: str, part: Path, size: int) -> None:
    have = part.stat().st_size if part.exists() else 0
    headers = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={have}-"} if have else {})
    try:
        answer = session.get(url, headers=headers, stream=True)
    except OSError as error:
        raise FetchEnd(CUT, f"{_host(url)} cannot be reached ({_reason(error)})") from error
    with closing(answer):
        if answer.status_code not in {200, 206}:
            code = CUT if answer.status_code >= 500 else NO_SUCH_FILE
            raise FetchEnd(code, f"{_host(url)} answers with status {answer.status_code}")
        goes_on = answer.status_code == 206 and answer.headers.get("Content-Range", "").startswith(
            f"bytes {have}-"
        )
        if answer.status_code == 206 and not goes_on:
            raise FetchEnd(NO_SUCH_FILE, f"{_host(url)} sends another part of the file than was asked for")
        with _open(part, append=goes_on) as file:
            try:
                for piece in answer.iter_content(_CHUNK):
                    _write(file, piece)
                    if file.tell() > size:
                        return  # larger than it should be; the caller sees it
            except OSError as error:
                raise FetchEnd(CUT, f"the connection to {_host(url)} broke off ({_reason(error)})") from error


def _open(part: Path, *, append: bool) -> Any:
    try:
        return part.open("ab" if append else "wb")
    except OSError as error:
        raise FetchEnd(DISK, f"{part} cannot be written: {error.strerror}") from error


def _write(file: Any, piece: bytes) -> None:
    try:
        file.write(piece)
        file.flush()
    except OSError as error:
        raise FetchEnd(DISK, f"{file.name} cannot be written: {error.strerror}") from error


def _host(url: str) -> str:
    """Return the host of an address, without its credentials; a local index as it is."""
    return url.partition("://")[2].partition("/")[0].rpartition("@")[2] or url


def _reason(error: BaseException) -> str:
    """Return the innermost reason: the outer ones repeat it with names of classes."""
    inner: Any = error
    while True:
        deeper = getattr(inner, "reason", None) or next(
            (one for one in getattr(inner, "args", ()) if isinstance(one, BaseException)), None
        )
        if not isinstance(deeper, BaseException):
            break
        inner = deeper
    text = str(getattr(inner, "strerror", "") or inner).rpartition(": ")[2]
    return re.sub(r"^\[Errno -?\d+\] ", "", text) or type(error).__name__


if __name__ == "__main__":
    main()
