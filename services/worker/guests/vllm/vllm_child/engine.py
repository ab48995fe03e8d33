"""Makes vLLM's engine by its own arguments, and describes what it is and what it generates.

All that names something of vLLM stands here.
"""

import asyncio
import math
from typing import Any, NoReturn

import vllm
from vllm import SamplingParams
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.lora.request import LoRARequest
from vllm.sampling_params import RequestOutputKind
from vllm.usage.usage_lib import UsageContext
from vllm.utils.argparse_utils import FlexibleArgumentParser
from vllm.v1.engine.async_llm import AsyncLLM

from .errors import RefusedError, one_line
from .messages import EngineReady, OpenSequence, SequencePart, StartEngine


def make_engine(order: StartEngine) -> tuple[Any, dict[str, Any]]:
    """Return vLLM's engine, and its adapters by their names.

    The leader tokenizes, so the engine gets no tokenizer: then it has no end of its own either, and a
    sequence ends by the tokens that the leader names.

    Raises:
        RefusedError: vLLM does not take the model with these arguments.
    """
    parser = FlexibleArgumentParser(prog="RYZ_VLLM_ARGS", add_help=False)
    AsyncEngineArgs.add_cli_args(parser)
    parser.add_argument("--lora-modules", nargs="+", default=[])
    parser.error = _refuse
    given = parser.parse_args(order.arguments)
    given.model, given.skip_tokenizer_init = order.model, True
    try:
        adapters = {
            name: LoRARequest(name, number, path)
            for number, (name, _, path) in enumerate((one.partition("=") for one in given.lora_modules), 1)
        }
        arguments = AsyncEngineArgs.from_cli_args(given)
        config = arguments.create_engine_config(UsageContext.ENGINE_CONTEXT)
    except (ValueError, OSError, NotImplementedError) as error:
        raise RefusedError(f"vLLM refuses: {one_line(error)}") from error
    engine = AsyncLLM.from_vllm_config(
        config,
        usage_context=UsageContext.ENGINE_CONTEXT,
        disable_log_stats=arguments.disable_log_stats,
    )
    return engine, adapters


async def warm_up(engine: Any) -> None:
    """Generate some tokens: with its first requests, of one sequence and of two, vLLM may compile for long.

    No answer to a ping comes meanwhile, so it belongs to the start.
    """
    fields = {
        "temperature": 1.0,
        "top_p": 0.9,
        "logprobs": 1,
        "ignore_eos": True,
        "stop_token_ids": [],
        "min_tokens": 0,
        "max_tokens": 2,
    }
    for count in (1, 2):
        await asyncio.gather(*(_drain(engine, fields, f"warm-up {count} {one}") for one in range(count)))


async def _drain(engine: Any, fields: dict[str, Any], request_id: str) -> None:
    prompt = {"type": "token", "prompt_token_ids": [1, 1, 1]}
    async for _ in engine.generate(prompt, sampling_params(fields), request_id, lora_request=None):
        pass


def _refuse(message: str) -> NoReturn:
    raise RefusedError(f"vLLM refuses RYZ_VLLM_ARGS: {message}")


def ready_message(engine: Any, adapters: dict[str, Any]) -> EngineReady:
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
        computed_as=" ".join(filter(None, types)),
        speculative=config.speculative_config is not None,
        adapters=list(adapters),
        kv_events=events.endpoint if events is not None and events.enable_kv_cache_events else "",
    )


def prompt_of(order: OpenSequence) -> dict[str, Any]:
    """Return a prompt as vLLM's renderer would have made it."""
    prompt = {"type": "token", "prompt_token_ids": order.token_ids}
    return prompt | {"cache_salt": order.salt} if order.salt else prompt


def sampling_params(fields: dict[str, Any]) -> Any:
    """Return the parameters of a sequence whose token ids come as they are generated, and no text."""
    return SamplingParams(**fields, output_kind=RequestOutputKind.DELTA, detokenize=False)


def part_of(seq_id: int, output: Any, num_alternatives: int) -> SequencePart:
    """Return what vLLM has generated of a sequence; `output`: its `CompletionOutput`."""
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
    )
