"""Writes what compose.yaml takes from `.env` (passwords, digests of images), and the groups of a models file.

Run from the repository: `python3 deploy/configure.py secrets` makes a random password for each variable that
compose.yaml demands and the file lacks, and checks those that it has; `python3 deploy/configure.py images`
asks the registry for the digests of the images that it names. Lines that are there stay, comments too.
`models FILE` has `ryz` check a models file and plan its worker groups, in its container, and writes them to
`compose.models.yaml`, which `COMPOSE_FILE` then names. `check` checks passwords and keys in the environment:
a container runs it before all others start. Needs nothing but Python.
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
GROUPS = "compose.models.yaml"  # beside the env file
DEMANDED = re.compile(r"\$\{(\w+_(?:PASSWORD|SECRET)):\?")
IMAGE = re.compile(r"\$\{(\w+_IMAGE):-([^}\s]+)\}")
ASSIGNMENT = re.compile(r"^\s*(?:export\s+)?(\w+)\s*=\s*(.*?)\s*$")
DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
LETTERS, ALPHABET = "abcdefghijkmnopqrstuvwxyz", "abcdefghijkmnopqrstuvwxyzABCDEFGHJKLMNPQRSTUVWXYZ23456789"
LENGTH = 40  # characters of 57: 230 bits
TIMEOUT_S = 120.0
PASSWORD = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")
MIN_PASSWORD = MIN_API_KEY = 8  # characters
MIN_SESSION_KEY = 16
# what a models file says of each of its models
OF_ONE_MODEL = (
    "RYZ_MODEL", "RYZ_MODEL_NAME", "RYZ_MODEL_TENANTS", "RYZ_TOOL_FORMAT", "RYZ_TENSOR_PARALLEL",
    "RYZ_THREADS", "RYZ_PRECISION", "RYZ_KV_CACHE_TOKENS",
)  # fmt: skip
REMEDY = "; write another one, or delete its line in .env and run `make secrets`"


class ConfigureFailed(Exception):
    """A step failed; the text says what to do about it."""


def new_password() -> str:
    """Return letters and digits, which a URL takes as they are; NATS takes a leading digit for a number."""
    return secrets.choice(LETTERS) + "".join(secrets.choice(ALPHABET) for _ in range(LENGTH - 1))


def assigned(text: str) -> dict[str, str]:
    """Return the variables that an env file sets to a value, without quotes."""
    found = (ASSIGNMENT.match(line) for line in text.splitlines() if not line.lstrip().startswith("#"))
    values = {match[1]: _value(match[2]) for match in found if match}
    return {name: value for name, value in values.items() if value}


def _value(text: str) -> str:
    """Return what Compose reads: the text in quotes, or up to a comment after a space."""
    if text[:1] in {"'", '"'}:
        return text[1:].partition(text[0])[0]
    return re.sub(r"(^|\s+)#.*", "", text)


def with_values(text: str, values: Mapping[str, str]) -> str:
    """Return the text with these variables set, in their line or else at the end."""
    left, lines = dict(values), []
    for line in text.splitlines():
        match = ASSIGNMENT.match(line) if not line.lstrip().startswith("#") else None
        lines.append(f"{match[1]}={left.pop(match[1])}" if match and match[1] in left else line)
    return "\n".join([*lines, *(f"{name}={value}" for name, value in left.items()), ""])


def problems(values: Mapping[str, str]) -> list[str]:
    """What is wrong with passwords and keys, one sentence each; a value is never repeated.

    Passwords stand in URLs and in the broker's configuration without quotes. Services refuse short keys.
    """
    found = []
    for name, value in values.items():
        if name.endswith("_PASSWORD"):
            if value[:1].isdigit():
                found.append(f"{name} begins with a digit, so the broker would take it for a number{REMEDY}")
            elif not PASSWORD.fullmatch(value):
                wanted = "letters, digits, - and _, the first one a letter"
                found.append(f"{name} has characters that a URL does not take; it needs {wanted}{REMEDY}")
            elif len(value) < MIN_PASSWORD:
                found.append(f"{name} has fewer than {MIN_PASSWORD} characters{REMEDY}")
    if 0 < len(values.get("RYZ_SESSION_KEY", "")) < MIN_SESSION_KEY:
        found.append(f"RYZ_SESSION_KEY has fewer than {MIN_SESSION_KEY} characters; write more, or none")
    for index, entry in enumerate(filter(None, map(str.strip, values.get("RYZ_API_KEYS", "").split(","))), 1):
        if len(entry.rpartition(":")[0]) < MIN_API_KEY:
            wanted = f"`key:tenant` with a key of {MIN_API_KEY} characters or more"
            found.append(f"RYZ_API_KEYS: entry {index} is no {wanted}")
    return found


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


def plan_groups(models: Path, memory_gib: str) -> str:
    """The Compose file for a models file; its directory is mounted, so that paths in it mean the same."""
    models = models.absolute()
    memory = ["--memory", memory_gib] if memory_gib else []
    mount = f"{models.parent}:{models.parent}:ro"
    plan = ["models", "plan", str(models), "--pull", "--compose", *memory]
    command = [*_compose(), "-f", str(COMPOSE), "run", "--rm", "-T", "-v", mount, "ryz", *plan]
    try:
        done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
    except FileNotFoundError as error:
        raise ConfigureFailed("there is neither `docker compose` nor `docker-compose`") from error
    if done.returncode:
        raise ConfigureFailed(f"{models} was not planned, and nothing was written; the reason is above")
    return done.stdout


def _compose() -> list[str]:
    """The Compose command of this machine: the plugin, or the older program."""
    if _docker("compose", "version").returncode == 0:
        return ["docker", "compose"]
    return ["docker-compose"]


def with_groups(text: str) -> str:
    """The env file with `compose.models.yaml` among the files that Compose reads."""
    files = assigned(text).get("COMPOSE_FILE", COMPOSE.name)
    if GROUPS in files.split(":"):
        return text
    return with_values(text, {"COMPOSE_FILE": f"{files}:{GROUPS}"})


def refused_settings(text: str) -> list[str]:
    """The settings in an env file that say something of one model, beside a models file."""
    return [
        f"{name} and the models file both say what is served; delete its line in .env"
        for name in OF_ONE_MODEL
        if name in assigned(text)
    ]


def _docker(*arguments: str) -> "subprocess.CompletedProcess[str]":
    command = ["docker", *arguments]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    except FileNotFoundError as error:
        raise ConfigureFailed("there is no `docker` on PATH; it is what asks the registry") from error
    except subprocess.TimeoutExpired as error:
        raise ConfigureFailed(f"`{' '.join(command)}` took longer than {TIMEOUT_S:g} s") from error


def main() -> int:
    """Changes the env file, or checks the environment; says which variables, and prints no value."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("what", choices=["secrets", "images", "models", "check"])
    parser.add_argument("models", nargs="?", type=Path, help="the models file, for `models`")
    parser.add_argument(
        "--memory", default="", help="GiB that the stack may take, for `models` (what is free)"
    )
    parser.add_argument("--file", type=Path, default=ENV, help="the env file (%(default)s)")
    options = parser.parse_args()
    if options.what == "check":
        return _report(problems(os.environ))
    text = options.file.read_text() if options.file.exists() else ""
    if options.what == "secrets" and (wrong := problems(assigned(text))):
        return _report(wrong)
    if options.what == "models":
        return _write_groups(options, text)
    compose = COMPOSE.read_text()
    try:
        values = make_secrets(compose, text) if options.what == "secrets" else pin_images(compose)
    except ConfigureFailed as error:
        print(f"configure: {error}", file=sys.stderr)
        return 1
    write_private(options.file, with_values(text, values))
    print(f"{options.file}: {', '.join(values) or 'nothing was missing'}")
    return 0


def _write_groups(options: argparse.Namespace, text: str) -> int:
    if options.models is None:
        return _report(["`models` needs a models file: `python3 deploy/configure.py models models.toml`"])
    if wrong := refused_settings(text):
        return _report(wrong)
    try:
        planned = plan_groups(options.models, options.memory)
    except ConfigureFailed as error:
        return _report([str(error)])
    written = options.file.with_name(GROUPS)
    write_private(written, planned)
    write_private(options.file, with_groups(text))
    print(f"{written} has the worker groups of {options.models}, and COMPOSE_FILE in {options.file} names it")
    return 0


def _report(wrong: list[str]) -> int:
    for problem in wrong:
        print(f"configure: {problem}", file=sys.stderr)
    return 2 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
