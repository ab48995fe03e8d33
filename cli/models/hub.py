"""Fetches models from the Hugging Face Hub with `huggingface_hub`, and goes on with parts of files.

Only what a model needs is taken: safetensors, JSON, the template and the licence, or one GGUF file. Each file
is compared with the checksum that the Hub's API gives: SHA-256 for large files, git's SHA-1 for small ones.
"""

import hashlib
import os
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any, TypeVar

from cli.console import fail
from cli.models.hub_errors import MOST_PAUSES, broke_off, hub_endpoint, hub_sentences, pause_asked
from cli.models.names import HubName
from cli.models.records import file_sha256
from cli.models.store import require_space, size_of
from cli.models.transfer_bar import TransferBar, pauses, transfer_bar

Answer = TypeVar("Answer")
TIMEOUT_S = 30.0  # of one wait for bytes
_INDEX = "model.safetensors.index.json"
_SHARD = re.compile(r"model-\d{5}-of-\d{5}\.safetensors")
_SMALL = re.compile(
    r"config\.json|generation_config\.json|tokenizer\.json|tokenizer_config\.json|special_tokens_map\.json"
    r"|added_tokens\.json|chat_template\.jinja|chat_template\.json"
    r"|additional_chat_templates/\w[\w.-]{0,63}\.jinja|(LICENSE|LICENCE|NOTICE|USE_POLICY)[\w.-]{0,32}"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class HubFile:
    """A file of a repository; one of the checksums is given."""

    path: str
    size: int
    sha256: str = ""
    git_sha1: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class HubModel:
    """A model on the Hub at one commit."""

    name: HubName
    commit: str
    licence: str
    files: tuple[HubFile, ...]

    @property
    def size(self) -> int:
        """Return the bytes of all files."""
        return sum(file.size for file in self.files)


def ask_hub(name: HubName) -> HubModel:
    """Return what the Hub has of a model; fail with a sentence if it cannot be had."""
    from huggingface_hub import HfApi  # noqa: PLC0415 (slow to import)

    def ask() -> Any:
        return HfApi(endpoint=hub_endpoint()).model_info(
            name.repository, revision=name.revision or None, files_metadata=True, timeout=TIMEOUT_S
        )

    with hub_sentences(name):
        info = _when_allowed(ask)
    files = {one.rfilename: _hub_file(one) for one in info.siblings or []}
    card = info.card_data.to_dict() if info.card_data else {}
    licence = str(card.get("license_name") or card.get("license") or "")
    return HubModel(
        name=name,
        commit=str(info.sha),
        licence=licence,
        files=tuple(files[path] for path in _wanted(name, files)),
    )


def fetch_from_hub(model: HubModel, staging: Path) -> dict[Path, str]:
    """Fetch all files into the staging directory; return the SHA-256 of each.

    Raises:
        CommandError: The network broke off, the disk is full, or a file is another one than the Hub says.
    """
    there = sum(min(_there(staging / file.path), file.size) for file in model.files)
    require_space(staging, model.size - there)
    checksums: dict[Path, str] = {}
    with transfer_bar(str(model.name), model.size, there) as bar:
        before = 0
        for file in model.files:
            path = staging / file.path
            resumed = _there(path) > 0
            while (sha256 := _checked(file, _fetch(model, file, path, bar, before))) is None:
                path.unlink()
                if not resumed:
                    fail(
                        f"{model.name}: {file.path} is not the file that the Hub lists (size or checksum "
                        f"differ). It was removed; `ryz models pull {model.name}` fetches it again."
                    )
                resumed = False
            checksums[path] = sha256
            before += file.size
            bar.advance_to(before)
    return checksums


def _fetch(model: HubModel, file: HubFile, path: Path, bar: TransferBar, before: int) -> Path:
    """Fetch what is lacking of a file, and try again when a connection breaks off that brought something."""
    if path.exists():
        return path
    part, again = _part(path), pauses()
    part.parent.mkdir(parents=True, exist_ok=True)
    while True:
        had, pause = size_of(part), None
        with hub_sentences(model.name, lambda: before + _there(path)):
            try:
                _when_allowed(lambda: _append(model, file, part, lambda done: bar.advance_to(before + done)))
                break
            except Exception as error:
                if not broke_off(error) or size_of(part) == had or (pause := next(again, None)) is None:
                    raise
        time.sleep(pause)
    part.replace(path)
    return path


def _when_allowed(ask: Callable[[], Answer]) -> Answer:
    """Ask the Hub, and ask again as often as it says when to do that."""
    for _ in range(MOST_PAUSES):
        try:
            return ask()
        except Exception as error:
            if (pause := pause_asked(error)) is None:
                raise
        time.sleep(pause)
    return ask()


def _append(model: HubModel, file: HubFile, part: Path, progress: Callable[[int], None]) -> None:
    """Append to a part what it lacks, at most up to a piece more than the file's size."""
    from huggingface_hub import get_session, hf_hub_url  # noqa: PLC0415 (slow to import)
    from huggingface_hub.utils import build_hf_headers, hf_raise_for_status  # type: ignore[attr-defined]  # noqa: PLC0415

    url = hf_hub_url(model.name.repository, file.path, revision=model.commit, endpoint=hub_endpoint())
    headers = build_hf_headers() | {"Accept-Encoding": "identity"}  # ranges are of the bytes as they are
    with part.open("ab") as out:
        if out.tell() > file.size:
            out.truncate(0)
        if have := out.seek(0, os.SEEK_END):
            if have == file.size:
                return  # ended before the part got its name; a server has no range behind the end
            headers["Range"] = f"bytes={have}-"
        with get_session().stream(
            "GET", url, headers=headers, follow_redirects=True, timeout=TIMEOUT_S
        ) as answer:
            hf_raise_for_status(answer)
            if answer.status_code != HTTPStatus.PARTIAL_CONTENT:
                out.truncate(0)
                have = 0
            for piece in answer.iter_bytes():
                out.write(piece)
                out.flush()
                have += len(piece)
                progress(have)
                if have > file.size:
                    return


def _part(path: Path) -> Path:
    return path.with_name(f"{path.name}.part")


def _there(path: Path) -> int:
    """Return the bytes that are there of a file, whole or not."""
    return size_of(path) or size_of(_part(path))


def _hub_file(sibling: Any) -> HubFile:
    lfs = sibling.lfs
    return HubFile(
        path=str(sibling.rfilename),
        size=int((lfs.size if lfs else sibling.size) or 0),
        sha256=str(lfs.sha256) if lfs else "",
        git_sha1="" if lfs else str(sibling.blob_id or ""),
    )


def _wanted(name: HubName, files: dict[str, HubFile]) -> list[str]:
    """Return the files to fetch; fail if the repository holds no model that can be served."""
    ggufs = sorted(path for path in files if path.endswith(".gguf"))
    if name.file:
        if name.file not in files:
            has = f" It has {', '.join(ggufs[:20])}." if ggufs else " It has no GGUF file."
            fail(f"There is no file {name.file} in {name.repository}.{has}", 2)
        return [name.file]
    weights = [path for path in files if _SHARD.fullmatch(path)] if _INDEX in files else []
    if not weights and "model.safetensors" in files:
        weights = ["model.safetensors"]
    if not weights:
        if ggufs:
            there = ", ".join(ggufs[:20])
            fail(f"{name} holds GGUF files: name one, as {name}/{ggufs[0]}. There are {there}.", 2)
        fail(f"{name} has no weights as safetensors, and other forms (pickles) are not loaded.", 2)
    for needed in ("config.json", "tokenizer.json"):
        if needed not in files:
            fail(f"{name} has no {needed}, so it cannot be served.", 2)
    return sorted({*weights, *(path for path in files if _SMALL.fullmatch(path)), *({_INDEX} & files.keys())})


def _checked(file: HubFile, path: Path) -> str | None:
    """Return the file's SHA-256; None if it is not the file of the commit."""
    sha256 = file_sha256(path)
    right = sha256 == file.sha256 if file.sha256 else _git_sha1(path) == file.git_sha1
    return sha256 if right and path.stat().st_size == file.size else None


def _git_sha1(path: Path) -> str:
    """Return the name that git gives to a file's content."""
    content = path.read_bytes()
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()
