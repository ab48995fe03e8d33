"""vLLM's processes are killed and stopped in mid-stream: no character is lost, repeated or garbled.

A run disturbs one group again and again. Its answers go on at a group of the null engine, or at another vLLM.
"""

import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest

from cli.stack.model_dir import demo_model
from tests.kits.chaos.figures import record
from tests.kits.chaos.scale import scaled
from tests.kits.e2e.stack import Stack
from tests.kits.guests.guest_fleet import own_stack
from tests.kits.guests.real_vllm import ARGUMENTS, vllm_python
from tests.kits.guests.vllm_fleet import Fault, vllm_fleet
from tests.kits.guests.vllm_guest import stub_python

pytestmark = pytest.mark.timeout(scaled(600, 5400))
FAULTS: tuple[Fault, ...] = get_args(Fault)


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    with own_stack(tmp_path_factory.mktemp("vllm-killed"), demo_model()) as stack:
        yield stack


def run_faults(stack: Stack, env: dict[str, str], second: str, count: int) -> None:
    """Makes faults at a vLLM group until `count` have cut answers."""
    chance, hits, cut = random.Random(41), Counter[str](), 0
    own = second == "own"
    with vllm_fleet(stack, demo_model(), env, groups=1 if own else 2, own=own) as fleet:
        while hits.total() < count:
            fault = FAULTS[hits.total() % len(FAULTS)]
            found = fleet.disturb(fault, after=chance.randint(1, 24))
            print(f"{fault}: {found} answers cut", flush=True)
            hits[fault] += found > 0
            cut += found
        record(f"vLLM killed: to {second}", faults=dict(hits), cut=cut, asked=fleet.asked)


@pytest.mark.parametrize("second", ["own", "vllm"])
def test_answers_of_the_stand_in_go_on_elsewhere(stack: Stack, tmp_path: Path, second: str) -> None:
    env = {"RYZ_VLLM_PYTHON": stub_python(tmp_path), "RYZ_VLLM_ARGS": "--stub-step-ms 20"}
    run_faults(stack, env, second, scaled(4, 50))


@pytest.mark.guests
@pytest.mark.parametrize("second", ["own", "vllm"])
def test_answers_of_vllm_go_on_elsewhere(stack: Stack, second: str) -> None:
    env = {"RYZ_VLLM_PYTHON": vllm_python(), "RYZ_VLLM_ARGS": ARGUMENTS, "RYZ_ENGINE_START_TIMEOUT_S": "1800"}
    run_faults(stack, env, second, scaled(4, 10))
