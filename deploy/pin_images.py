"""Writes the images of compose.yaml into `.env` by the digests that their tags have in the registry now.

Run from the repository: `python3 deploy/pin_images.py` (`make pin-images`). Lines that are there stay, also
comments. Needs nothing but Python and `docker`.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
COMPOSE, ENV = ROOT / "compose.yaml", ROOT / ".env"
IMAGE = re.compile(r"\$\{(\w+_IMAGE):-([^}\s]+)\}")
ASSIGNMENT = re.compile(r"^\s*(?:export\s+)?(\w+)\s*=\s*(.*?)\s*$")
DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
TIMEOUT_S = 120.0


class NoDigest(Exception):
    """A step failed; the text says what to do about it."""


def with_values(text: str, values: Mapping[str, str]) -> str:
    """Return the text with these variables set, in their line or else at the end."""
    left, lines = dict(values), []
    for line in text.splitlines():
        match = ASSIGNMENT.match(line) if not line.lstrip().startswith("#") else None
        lines.append(f"{match[1]}={left.pop(match[1])}" if match and match[1] in left else line)
    return "\n".join([*lines, *(f"{name}={value}" for name, value in left.items()), ""])


def write_private(path: Path, text: str) -> None:
    """Replace the file at once, so that no reader sees half of it; only its owner may read it (0600)."""
    path = path.resolve()  # replaces the file that a link names, not the link
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f"{path.name}.")  # made with 0600
    try:
        with os.fdopen(handle, "w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def digest_of(tag: str) -> str:
    """The digest of the tag's index, for all platforms; asks the registry, and pulls without buildx."""
    seen = _docker("buildx", "imagetools", "inspect", tag, "--format", "{{json .Manifest}}")
    if seen.returncode == 0:
        found = str(json.loads(seen.stdout).get("digest", ""))
    else:
        pulled = _docker("pull", "--quiet", tag)
        if pulled.returncode:
            raise NoDigest(f"the registry gave no digest for {tag}: {(pulled.stderr or seen.stderr).strip()}")
        digests = _docker("image", "inspect", tag, "--format", "{{json .RepoDigests}}").stdout
        match = DIGEST.search(digests)
        found = match[0] if match else ""
    if not DIGEST.fullmatch(found):
        raise NoDigest(f"{tag} has no digest in a registry: is it an image that was built on this machine?")
    return found


def _docker(*arguments: str) -> "subprocess.CompletedProcess[str]":
    command = ["docker", *arguments]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    except FileNotFoundError as error:
        raise NoDigest("there is no `docker` on PATH; it is what asks the registry") from error
    except subprocess.TimeoutExpired as error:
        raise NoDigest(f"`{' '.join(command)}` took longer than {TIMEOUT_S:g} s") from error


def main() -> int:
    """Changes the env file, and says which variables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--file", type=Path, default=ENV, help="the env file (%(default)s)")
    file: Path = parser.parse_args().file
    text = file.read_text() if file.exists() else ""
    try:
        values = {
            name: f"{tag}@{digest_of(tag)}" for name, tag in dict(IMAGE.findall(COMPOSE.read_text())).items()
        }
    except NoDigest as error:
        print(f"pin_images: {error}", file=sys.stderr)
        return 1
    write_private(file, with_values(text, values))
    print(f"{file}: {', '.join(values)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
