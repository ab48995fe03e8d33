"""Tells apart what a user may mean by a model's name: a name of the catalogue, one on the Hub, or a path."""

import re
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from cli.console import fail
from shared.messages.base import NAME_PATTERN, NOT_IN_NAMES

HUB_FORM = "hf:OWNER/NAME[@REVISION][/FILE.gguf]"
_WORD = r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,95}"
_HUB = re.compile(
    rf"hf:(?P<owner>{_WORD})/(?P<name>{_WORD})(?:@(?P<revision>{_WORD}))?(?:/(?P<file>(?:{_WORD}/){{0,8}}{_WORD}))?"
)
HUB_ID = re.compile(rf"{_WORD}/{_WORD}")


@dataclass(frozen=True, slots=True)
class HubName:
    """A repository on the Hugging Face Hub, or one GGUF file in it; no `revision` means its main branch."""

    owner: str
    name: str
    revision: str = ""
    file: str = ""

    @property
    def repository(self) -> str:
        """Return OWNER/NAME."""
        return f"{self.owner}/{self.name}"

    def __str__(self) -> str:
        revision = f"@{self.revision}" if self.revision else ""
        return f"hf:{self.repository}{revision}" + (f"/{self.file}" if self.file else "")

    def directory(self) -> PurePosixPath:
        """Return where it lies in the models directory."""
        folder = f"{self.name}@{self.revision}" if self.revision else self.name
        if self.file:
            return PurePosixPath("hf-files", self.owner, folder, *self.file.split("/"))
        return PurePosixPath("hf", self.owner, folder)


def is_hub_name(given: str) -> bool:
    """Return whether it is meant as a name on the Hub."""
    return given.startswith("hf:")


def hub_name(given: str) -> HubName:
    """Take a name on the Hub apart; fail with the form that is expected."""
    match = _HUB.fullmatch(given)
    file = match["file"] or "" if match else ""
    if match is None or (file and not file.endswith(".gguf")):
        fail(f"{given} is no model's name on the Hub: it has the form {HUB_FORM}.", 2)
    return HubName(match["owner"], match["name"], match["revision"] or "", file)


def served_name(path: Path) -> str:
    """Return the name under which a model is served by default: the directory's, or the file's stem.

    Characters that a name may not hold become `-`; a revision (`@...`) in a directory's name is left out.
    """
    name = path.stem if path.suffix.lower() == ".gguf" else path.name.partition("@")[0] or path.name
    cleaned = re.sub(f"[{NOT_IN_NAMES}]+", "-", name).strip("-")[:128]
    return cleaned if re.match(NAME_PATTERN, cleaned) else "model"
