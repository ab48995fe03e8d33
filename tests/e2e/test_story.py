"""The demo model recalls a name from the turn before, for twenty names that are not in its training data.

Decoding is greedy. The client sends either the whole history or the session id alone.
"""

import json
import re

import httpx
import pytest

from tests.kits.e2e.stack import Stack, ryz
from tests.kits.e2e.turns import post_turn, said
from training.words import HELD_OUT_NAMES

NAMES = HELD_OUT_NAMES[:20]


def wrong_answers(stack: Stack, by: str) -> dict[str, str]:
    """The second turn's answer for each name that it got wrong."""
    assert len(set(NAMES)) == 20
    wrong = {}
    with httpx.Client(base_url=stack.state.url, timeout=30) as client:
        for name in NAMES:
            statement, asked = {"role": "user", "content": f"My name is {name}."}, "What is my name?"
            session_id = f"story-{name}" if by == "session" else ""
            first = said(post_turn(client, [statement], session_id, max_tokens=40)).strip()
            question = [{"role": "user", "content": asked}]
            if by == "history":
                question = [statement, {"role": "assistant", "content": first}, *question]
            answer = said(post_turn(client, question, session_id, max_tokens=40)).strip()
            if answer != f"Your name is {name}.":
                wrong[name] = answer
    return wrong


@pytest.mark.parametrize("by", ["history", "session"])
def test_the_second_turn_knows_the_name(torch_stack: Stack, by: str) -> None:
    assert wrong_answers(torch_stack, by) == {}


def test_it_knows_the_name_with_weights_of_8_bits(int8_stack: Stack) -> None:
    assert wrong_answers(int8_stack, "session") == {}


@pytest.mark.parametrize(
    ("name", "pattern"),
    [
        ("torch_stack", r"plain|native avx\w+ bf16, float16 KV"),
        ("int8_stack", r"native avx\w+ int8, float16 KV"),
    ],
)
def test_status_tells_what_ranks_compute_with(
    request: pytest.FixtureRequest, name: str, pattern: str
) -> None:
    stack: Stack = request.getfixturevalue(name)
    report = json.loads(ryz("status", "--json", cwd=stack.folder).stdout)
    kernels_shown = [rank["kernels"] for group in report["groups"] for rank in group["ranks"]]
    assert len(kernels_shown) == 2 * len(report["groups"]) > 0
    assert all(re.fullmatch(pattern, kernels) for kernels in kernels_shown), kernels_shown
