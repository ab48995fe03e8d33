"""The text of a Compose file that is read after `compose.yaml`, with a worker for each group.

Pure. Workers that `compose.yaml` does not have are made of its blocks (`x-worker` and those that it needs),
which are copied, since anchors of YAML do not reach into other files.
"""

import json
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from cli.stack.group_plan import service_name

BASE_GROUPS = 2  # workers of compose.yaml
_BLOCKS = ("hardened", "build", "environment", "worker-environment", "worker")
_VOLUME = "${RYZ_MODELS_VOLUME:-models}:/models:ro"


@dataclass(frozen=True, slots=True)
class ComposeGroup:
    """The container of one group.

    Attributes:
        settings: The worker's variables, without those that all workers of `compose.yaml` have.
        mounts: Paths of this machine that it reads.
        limit_bytes: Memory that it may take.
    """

    settings: Mapping[str, str]
    mounts: Sequence[str]
    limit_bytes: int


def override_text(
    compose: str, groups: Sequence[ComposeGroup], pulls: Sequence[str], aliases: str, head: str
) -> str:
    """Return the file.

    Args:
        compose: The text of `compose.yaml`.
        groups: By their numbers.
        pulls: Names of models that are fetched into the volume before workers start.
        aliases: The gateway's setting; empty: none.
        head: Lines for a comment at the beginning.
    """
    lines = [f"# {line}" for line in head.splitlines()]
    if len(groups) > BASE_GROUPS:
        lines += ["", *_blocks(compose)]
    lines += ["", "services:", *_model(pulls)]
    for number, group in enumerate(groups):
        lines += _worker(number, group)
    for number in range(len(groups), BASE_GROUPS):
        lines += [f"  {service_name(number)}:", "    scale: 0"]
    return "\n".join([*lines, *_gateway(len(groups), aliases), ""])


def _blocks(compose: str) -> Iterator[str]:
    found = {
        match[1]: match[0].rstrip()
        for match in re.finditer(r"^x-([\w-]+):.*\n(?:(?!\S).*\n)*", compose, re.M)
    }
    for name in _BLOCKS:
        yield found[name]


def _model(pulls: Sequence[str]) -> Iterator[str]:
    each = " && ".join(f"ryz models pull {shlex.quote(name)}" for name in pulls)
    yield "  model:"
    yield f"    command: [{_quoted(each or 'true')}]"


def _worker(number: int, group: ComposeGroup) -> Iterator[str]:
    is_new = number >= BASE_GROUPS
    yield f"  {service_name(number)}:"
    if is_new:
        yield "    <<: *worker"
    yield "    environment:"
    if is_new:
        yield "      <<: *worker-environment"
    for name, value in group.settings.items():
        yield f"      {name}: {_quoted(value)}"
    yield f"    mem_limit: ${{RYZ_WORKER_MEMORY:-{group.limit_bytes // 2**20}m}}"
    if group.mounts:
        volumes = [f'"{_VOLUME}"', *(_quoted(f"{path}:{path}:ro") for path in group.mounts)]
        yield f"    volumes: [{', '.join(volumes)}]"


def _gateway(groups: int, aliases: str) -> Iterator[str]:
    more = [service_name(number) for number in range(BASE_GROUPS, groups)]
    if not more and not aliases:
        return
    yield "  gateway:"
    if aliases:
        yield from ("    environment:", f"      RYZ_MODEL_ALIASES: {_quoted(aliases)}")
    if more:
        yield "    depends_on:"
        yield from (f"      {name}: {{condition: service_healthy}}" for name in more)


def _quoted(text: str) -> str:
    """A text in YAML, in which Compose replaces nothing."""
    return json.dumps(text.replace("$", "$$"), ensure_ascii=False)
