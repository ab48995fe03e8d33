"""Fetches models from the Hugging Face Hub with `huggingface_hub`, which resumes parts of files by itself.

Only what a model needs is taken: safetensors, JSON, the template and the licence, or one GGUF file. Each file
is compared with the checksum that the Hub's API gives: SHA-256 for large files, git's SHA-1 for small ones.
"""

import hashlib
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from cli.console import fail
from cli.models.hub_errors import hub_endpoint, hub_sentences
from cli.models.model_names import HubName
from cli.models.model_records import file_sha256
from cli.models.model_store import require_space, size_of
from cli.models.transfer_bar import TransferBar, transfer_bar

TIMEOUT_S = 30.0
_INDEX = "model.safetensors.index.json"
_SHARD = re.compile(r"model-\d{5}-of-\d{5}\.safetensors")
_SMALL = re.compile(
    r"config\.json|generation_config\.json|tokenizer\.json|tokenizer_config\.json|special_tokens_map\.json"
    r"|added_tokens\.json|chat_template\.jinja|(LICENSE|LICENCE|NOTICE|USE_POLICY)[\w.-]{0,32}"
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

    with hub_sentences(name):
        info: Any = HfApi(endpoint=hub_endpoint()).model_info(
            name.repository, revision=name.revision or None, files_metadata=True, timeout=TIMEOUT_S
        )
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
    from huggingface_hub import hf_hub_download  # noqa: PLC0415 (slow to import)

    there = sum(min(size_of(file), model.size) for file in staging.rglob("*") if file.is_file())
    require_space(staging, max(0, model.size - there))
    checksums: dict[Path, str] = {}
    with transfer_bar(str(model.name), model.size) as bar:
        before = 0
        for file in model.files:
            with hub_sentences(model.name, before):
                path = Path(
                    hf_hub_download(
                        model.name.repository,
                        file.path,
                        revision=model.commit,
                        local_dir=staging,
                        endpoint=hub_endpoint(),
                        tqdm_class=_counter(bar, before),
                    )
                )
            checksums[path] = _check(model, file, path)
            before += file.size
            bar.reach(before)
    return checksums


def forget_parts(staging: Path) -> None:
    """Remove what the library keeps beside the files."""
    shutil.rmtree(staging / ".cache", ignore_errors=True)


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


def _check(model: HubModel, file: HubFile, path: Path) -> str:
    """Return the file's SHA-256; fail, and remove the file, if it is not the one of the commit."""
    sha256 = file_sha256(path)
    right = sha256 == file.sha256 if file.sha256 else _git_sha1(path) == file.git_sha1
    if path.stat().st_size != file.size or not right:
        path.unlink()
        fail(
            f"{model.name}: {file.path} is not the file that the Hub lists (size or checksum differ). "
            f"It was removed; `ryz models pull {model.name}` fetches it again."
        )
    return sha256


def _git_sha1(path: Path) -> str:
    """Return the name that git gives to a file's content."""
    content = path.read_bytes()
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


def _counter(bar: TransferBar, before: int) -> Any:
    """Return what the library calls to make its progress bar of one file; it moves ours."""

    class _Counter:
        def __init__(self, *_: object, initial: float = 0, **__: object) -> None:
            self.n = initial

        def update(self, count: float = 1) -> None:
            self.n += count
            bar.reach(before + int(self.n))

        def close(self) -> None:
            """Nothing to close: the bar is of all files."""

        def __enter__(self) -> Self:
            return self

        def __exit__(self, *_: object) -> None:
            self.close()

    return _Counter
