"""Makes vLLM's engine by its own arguments, and describes what it is and what it generates.

All that names something of vLLM stands here.
"""

import asyncio
import math
from typing import Any, NoReturn

import vllm
from transformers import AutoTokenizer
from vllm import SamplingParams
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.sampling_params import RequestOutputKind, StructuredOutputsParams
from vllm.usage.usage_lib import UsageContext
from vllm.utils.argparse_utils import FlexibleArgumentParser
from vllm.v1.engine.async_llm import AsyncLLM

from .errors import RefusedError, one_line
from .messages import EngineReady, OpenSequence, SequencePart, StartEngine

_SHORT: dict[str, Any] = {"ignore_eos": True, "stop_token_ids": [], "min_tokens": 0, "max_tokens": 2}
_PROBED = [7, 5]  # tokens
_PROBE = "start: <[7]> <[5]>\n"


def make_engine(order: StartEngine) -> Any:
    """Return vLLM's engine.

    The leader tokenizes, and a sequence ends by the tokens that the leader names. vLLM gets a tokenizer all
    the same, for it follows no grammar without one; where it cannot load one, it has none.

    Raises:
        RefusedError: vLLM does not take the model with these arguments.
    """
    parser = FlexibleArgumentParser(prog="RYZ_VLLM_ARGS", add_help=False)
    AsyncEngineArgs.add_cli_args(parser)
    parser.error = _refuse
    given = parser.parse_args(order.arguments)
    given.model, given.skip_tokenizer_init = order.model, not _has_tokenizer(order.model)
    try:
        arguments = AsyncEngineArgs.from_cli_args(given)
        config = arguments.create_engine_config(UsageContext.ENGINE_CONTEXT)
    except (ValueError, OSError, NotImplementedError) as error:
        raise RefusedError(f"vLLM refuses: {one_line(error)}") from error
    return AsyncLLM.from_vllm_config(
        config,
        usage_context=UsageContext.ENGINE_CONTEXT,
        disable_log_stats=arguments.disable_log_stats,
    )


def _has_tokenizer(model: str) -> bool:
    """Return True if vLLM can load the model's tokenizer; code of the model is not run for it."""
    try:
        AutoTokenizer.from_pretrained(model)
    except Exception:  # the library raises what it meets
        return False
    return True


async def follows_grammars(engine: Any) -> bool:
    """Return True if vLLM gives the only answer that a grammar leaves."""
    if engine.vllm_config.model_config.skip_tokenizer_init:
        return False
    try:
        came = await _drain(engine, {**_SHORT, "temperature": 0.0, "top_p": 1.0}, "grammar", _PROBE)
    except ValueError:  # refused by the backend of `--structured-outputs-config`
        return False
    return came == _PROBED


async def warm_up(engine: Any) -> None:
    """Generate some tokens: with its first requests, of one sequence and of two, vLLM may compile for long.

    No answer to a ping comes meanwhile, so it belongs to the start.
    """
    fields = {**_SHORT, "temperature": 1.0, "top_p": 0.9, "logprobs": 1}
    for count in (1, 2):
        await asyncio.gather(*(_drain(engine, fields, f"warm-up {count} {one}") for one in range(count)))


async def _drain(engine: Any, fields: dict[str, Any], request_id: str, grammar: str = "") -> list[int]:
    prompt, came = {"type": "token", "prompt_token_ids": [1, 1, 1]}, list[int]()
    async for output in engine.generate(prompt, sampling_params(fields, grammar), request_id):
        came += output.outputs[0].token_ids
    return came


def _refuse(message: str) -> NoReturn:
    raise RefusedError(f"vLLM refuses RYZ_VLLM_ARGS: {message}")


def ready_message(engine: Any, *, grammars: bool) -> EngineReady:
    """Return what an engine says of itself."""
    config = engine.vllm_config
    model, cache, events = config.model_config, config.cache_config, config.kv_events_config
    types = [str(model.dtype).removeprefix("torch."), model.quantization or ""]
    return EngineReady(
        version=vllm.__version__,
        context_length=model.max_model_len,
        vocab_size=model.get_vocab_size(),
        max_running=config.scheduler_config.max_num_seqs * config.parallel_config.data_parallel_size,
        kv_tokens=(cache.num_gpu_blocks or 0) * cache.block_size,
        block_tokens=cache.block_size,
        computed_as=" ".join(filter(None, types)),
        speculative=config.speculative_config is not None,
        kv_events=events.endpoint if events is not None and events.enable_kv_cache_events else "",
        grammars=grammars,
    )


def prompt_of(order: OpenSequence) -> dict[str, Any]:
    """Return a prompt as vLLM's renderer would have made it."""
    prompt = {"type": "token", "prompt_token_ids": order.token_ids}
    return prompt | {"cache_salt": order.salt} if order.salt else prompt


def sampling_params(fields: dict[str, Any], grammar: str) -> Any:
    """Return the parameters of a sequence whose token ids come as they are generated, and no text."""
    form = {"structured_outputs": StructuredOutputsParams(grammar=grammar)} if grammar else {}
    return SamplingParams(**fields, **form, output_kind=RequestOutputKind.DELTA, detokenize=False)


def part_of(seq_id: int, answer: Any, num_alternatives: int) -> SequencePart:
    """Return what vLLM has generated of a sequence; `answer`: its `RequestOutput`."""
    output = answer.outputs[0]
    reason: Any = output.finish_reason or ""
    error = "" if reason in ("", "stop", "length") else f"vLLM ended the sequence by itself: {reason}"
    token_ids = list(output.token_ids)
    scores = [] if output.logprobs is None else [output.logprobs[i] for i in range(len(token_ids))]
    alternatives = [
        # beside the likeliest tokens there is the one that was chosen, with its own rank
        sorted(
            (one.rank, token_id, one.logprob) for token_id, one in by_id.items() if one.logprob > -math.inf
        )
        for by_id in scores
    ]
    return SequencePart(
        seq_id,
        token_ids,
        [by_id[token_id].logprob for token_id, by_id in zip(token_ids, scores, strict=False)],
        [
            [(token_id, value) for rank, token_id, value in ranked if rank <= num_alternatives]
            for ranked in alternatives
        ],
        finished=reason if not error else "",
        error=error,
        cached_tokens=answer.num_cached_tokens or 0,
    )
