"""Writes the values that compose.yaml takes from `.env`: passwords, made once, and digests of images.

Run from the repository: `python3 deploy/configure.py secrets` makes a random password for each variable that
compose.yaml demands and the file lacks; `python3 deploy/configure.py images` asks the registry for the
digests of the images that it names. Lines that are there stay, comments too. Needs nothing but Python.
"""

import argparse
import json
import os
import re
import secrets
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
COMPOSE, ENV = ROOT / "compose.yaml", ROOT / ".env"
DEMANDED = re.compile(r"\$\{(\w+_(?:PASSWORD|SECRET)):\?")
IMAGE = re.compile(r"\$\{(\w+_IMAGE):-([^}\s]+)\}")
ASSIGNMENT = re.compile(r"^\s*(?:export\s+)?(\w+)\s*=\s*(.*?)\s*$")
DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
LETTERS, ALPHABET = "abcdefghijkmnopqrstuvwxyz", "abcdefghijkmnopqrstuvwxyzABCDEFGHJKLMNPQRSTUVWXYZ23456789"
LENGTH = 40  # characters of 57: 230 bits
TIMEOUT_S = 120.0


class ConfigureFailed(Exception):
    """A step failed; the text says what to do about it."""


def new_password() -> str:
    """Return letters and digits, which a URL takes as they are; NATS takes a leading digit for a number."""
    return secrets.choice(LETTERS) + "".join(secrets.choice(ALPHABET) for _ in range(LENGTH - 1))


def assigned(text: str) -> dict[str, str]:
    """Return the variables that an env file sets to a value, without quotes."""
    found = (ASSIGNMENT.match(line) for line in text.splitlines() if not line.lstrip().startswith("#"))
    values = {match[1]: match[2].strip("'\"") for match in found if match}
    return {name: value for name, value in values.items() if value}


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


def make_secrets(compose: str, text: str) -> dict[str, str]:
    """A password for each variable that compose.yaml demands and the env file does not set."""
    there = assigned(text)
    return {name: new_password() for name in dict.fromkeys(DEMANDED.findall(compose)) if name not in there}


def pin_images(compose: str) -> dict[str, str]:
    """Each image that compose.yaml names, with the digest that its tag has in the registry now."""
    return {name: f"{tag}@{digest_of(tag)}" for name, tag in dict(IMAGE.findall(compose)).items()}


def digest_of(tag: str) -> str:
    """The digest of the tag's index, for all platforms; asks the registry, and pulls without buildx."""
    seen = _docker("buildx", "imagetools", "inspect", tag, "--format", "{{json .Manifest}}")
    if seen.returncode == 0:
        found = str(json.loads(seen.stdout).get("digest", ""))
    else:
        pulled = _docker("pull", "--quiet", tag)
        if pulled.returncode:
            raise ConfigureFailed(
                f"the registry gave no digest for {tag}: {(pulled.stderr or seen.stderr).strip()}"
            )
        digests = _docker("image", "inspect", tag, "--format", "{{json .RepoDigests}}").stdout
        match = DIGEST.search(digests)
        found = match[0] if match else ""
    if not DIGEST.fullmatch(found):
        raise ConfigureFailed(
            f"{tag} has no digest in a registry: is it an image that was built on this machine?"
        )
    return found


def _docker(*arguments: str) -> "subprocess.CompletedProcess[str]":
    command = ["docker", *arguments]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    except FileNotFoundError as error:
        raise ConfigureFailed("there is no `docker` on PATH; it is what asks the registry") from error
    except subprocess.TimeoutExpired as error:
        raise ConfigureFailed(f"`{' '.join(command)}` took longer than {TIMEOUT_S:g} s") from error


def main() -> int:
    """Changes the env file, and says which variables were set; no value is printed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("what", choices=["secrets", "images"])
    parser.add_argument("--file", type=Path, default=ENV, help="the env file (%(default)s)")
    options = parser.parse_args()
    text = options.file.read_text() if options.file.exists() else ""
    compose = COMPOSE.read_text()
    try:
        values = make_secrets(compose, text) if options.what == "secrets" else pin_images(compose)
    except ConfigureFailed as error:
        print(f"configure: {error}", file=sys.stderr)
        return 1
    write_private(options.file, with_values(text, values))
    print(f"{options.file}: {', '.join(values) or 'nothing was missing'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
