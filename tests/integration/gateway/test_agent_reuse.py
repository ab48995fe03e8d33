"""Twenty turns in the shapes of four coding agents: tokens of earlier turns are found in the cache.

A turn's reusable tokens are those of the prompt before it and of its answer, since the client sends both
again. Block borders and the last token of an answer cost some twenty of them.
"""

from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from services.worker.model_files.load_model import load_model
from services.worker.null.engine import NullEngine
from services.worker.text.chat_template import ChatTemplate
from tests.kits.agents.agent_shapes import AGENTS, Agent, ClaudeCode, Cline
from tests.kits.agents.hermes_template import TEMPLATE
from tests.kits.gateway.with_leader import gateway_with_leader

DEMO = Path(__file__).resolve().parents[3] / "models" / "demo"
TURNS, SHARE, CONTEXT = 20, 0.99, 32_768
ANSWER = "I have read the file, and the function is right as it is now. "


async def shares_of(shape: type[Agent], turns: int, *, drops: bool = True) -> list[float]:
    """The reused share of the reusable tokens of each turn after the first."""
    demo = load_model(DEMO, "real")
    template = ChatTemplate(TEMPLATE, {"bos_token": "<|bos|>"})
    model = replace(demo, context_length=CONTEXT, template=template, tool_format="hermes")
    engine = NullEngine(
        step_delay_s=0.0,
        tokens=demo.tokenizer.encode(ANSWER, add_special_tokens=False),
        num_blocks=8192,
        vocab_size=demo.tokenizer.vocab_size,
        context_length=CONTEXT,
    )
    agent, before, shares, lost, calls = shape(), 0, list[float](), 0, 0
    async with (
        gateway_with_leader(
            leader={"engine": engine, "model": model},
            model_aliases="claude-*=real,gpt-*=real",
            leave_out_changing_blocks=drops,
        ) as gateway,
        httpx.AsyncClient(base_url=gateway.url, timeout=60) as http,
    ):
        for _ in range(turns):
            agent.begin_turn()
            answer = await http.post(agent.path, json=agent.body())
            assert answer.status_code == 200, answer.text
            whole = answer.json()
            prompt, cached = agent.counts(whole)
            if before:
                shares.append(cached / before)
                lost = max(lost, before - cached)
            usage = whole["usage"]
            before = prompt + usage.get("output_tokens", usage.get("completion_tokens", 0))
            agent.take(whole)
            calls += bool(getattr(agent, "calls", ()))
    print(
        f"{shape.__name__}: at least {min(shares):.4f} a turn, {lost} tokens lost at most, "
        f"last prompt {prompt} tokens, {calls} turns with calls"
    )
    assert calls >= turns // 2 or shape is Cline
    return shares


@pytest.mark.parametrize("shape", AGENTS)
async def test_twenty_turns_reuse_what_they_send_again(shape: type[Agent]) -> None:
    shares = await shares_of(shape, TURNS)
    assert len(shares) == TURNS - 1
    assert min(shares) >= SHARE


async def test_a_block_that_changes_would_end_reuse() -> None:
    assert max(await shares_of(ClaudeCode, 4, drops=False)) < 0.5
