"""vLLM itself, where an environment of it and a model are named."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from cli.stack.model_dir import demo_model
from services.worker.guests.vllm.guest import VllmGuest
from services.worker.guests.vllm.options import VllmOptions
from services.worker.guests.vllm.process import vllm_environment
from tests.kits.guests.servers import VLLM_MODEL, VLLM_PYTHON
from tests.kits.guests.vllm_guest import Watched

# fp32, since answers in company are compared with answers alone
ARGUMENTS = "--dtype float32 --max-model-len 2048 --max-num-seqs 16 --enforce-eager"
_REFERENCE = """
import json, sys
from vllm import LLM, SamplingParams
if __name__ == "__main__":
    order = json.loads(sys.argv[1])
    model = LLM(order["model"], dtype="float32", max_model_len=2048, max_num_seqs=16, enforce_eager=True)
    sampling = SamplingParams(temperature=0, max_tokens=order["count"], ignore_eos=True, logprobs=3)
    given = [{"prompt_token_ids": one} for one in order["prompts"]]
    answers = [answer.outputs[0] for answer in model.generate(given, sampling, use_tqdm=False)]
    print("ANSWERS " + json.dumps([
        {
            "tokens": list(one.token_ids),
            "logprobs": [by_id[token].logprob for token, by_id in zip(one.token_ids, one.logprobs)],
        }
        for one in answers
    ]))
"""


def vllm_python() -> str:
    """An interpreter with vLLM; skips the test if the variable names none."""
    python = os.environ.get(VLLM_PYTHON)
    if not python:
        pytest.skip(f"{VLLM_PYTHON} names no interpreter with vLLM")
    return python


def vllm_model() -> Path:
    """The model that the variable names, by default the demo model."""
    return Path(os.environ.get(VLLM_MODEL) or demo_model())


def vllm_options(arguments: str = ARGUMENTS) -> VllmOptions:
    """The environment and the model that the variables name."""
    return VllmOptions(
        vllm_python=vllm_python(),
        vllm_args=arguments,
        model=str(vllm_model()),
        prefix_sharing="tenant",
        silence_s=60.0,
    )


def real_guest(arguments: str = ARGUMENTS) -> Watched:
    return Watched(VllmGuest(vllm_options(arguments)))


def reference_answers(prompts: list[list[int]], count: int, folder: Path) -> list[dict[str, Any]]:
    """What vLLM answers by its own offline interface, greedily: `tokens`, and their `logprobs`."""
    options, script = vllm_options(), folder / "reference.py"
    script.write_text(_REFERENCE)
    order = {"model": options.model, "prompts": prompts, "count": count}
    done = subprocess.run(
        [options.vllm_python, str(script), json.dumps(order)],
        env=vllm_environment(os.environ),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    line = next(line for line in done.stdout.splitlines() if line.startswith("ANSWERS "))
    answers: list[dict[str, Any]] = json.loads(line.removeprefix("ANSWERS "))
    return answers
