"""A stand-in for vLLM with the part of its interface that `vllm_child` uses: counts upwards from a prompt.

As vLLM it computes in a process of its own, in steps, for all sequences at once. It takes arguments that vLLM
has not, `--stub-...`, which make it fail. Beside this file are grammars and the process that computes.
"""

import argparse
import asyncio
import json
import multiprocessing
import os
import sys
import time
import types
from collections.abc import AsyncIterator
from typing import Any

from .stub_core import BLOCK_SIZE, NUM_BLOCKS, run_core
from .stub_grammar import VOCAB_SIZE
from .stub_types import EngineDeadError, RequestOutputKind, StructuredOutputsParams, UsageContext

__version__ = "0.0.stub"
TELLS_SALT = 2047  # a prompt that ends with it is answered with the length of its salt
_FIELDS = {
    "temperature", "top_p", "top_k", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty",
    "ignore_eos", "stop_token_ids", "max_tokens", "min_tokens", "logit_bias", "seed", "logprobs",
    "structured_outputs",
}  # fmt: skip


class SamplingParams:
    """The fields that are used, and the checks that vLLM makes of them."""

    def __init__(self, *, output_kind: RequestOutputKind, detokenize: bool, **fields: Any) -> None:
        if unknown := fields.keys() - _FIELDS:
            raise TypeError(f"unexpected {sorted(unknown)}")
        if not 0 < fields["top_p"] <= 1:
            raise ValueError(f"top_p must be in (0, 1], got {fields['top_p']}.")
        if fields["min_tokens"] > fields["max_tokens"]:
            raise ValueError("min_tokens must be less than or equal to max_tokens")
        if any(
            token_id >= VOCAB_SIZE for token_id in [*fields["stop_token_ids"], *fields.get("logit_bias", ())]
        ):
            raise ValueError("contains out-of-vocab token ids")
        form = fields.pop("structured_outputs", None)
        if form is not None:
            fields["grammar"] = form.grammar
        assert output_kind is RequestOutputKind.DELTA
        assert not detokenize
        self.fields = fields


class AsyncEngineArgs:
    """Some of vLLM's arguments, and those of the stub."""

    def __init__(self, given: argparse.Namespace) -> None:
        self.given = given
        self.disable_log_stats = given.disable_log_stats

    @staticmethod
    def add_cli_args(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
        parser.add_argument("--max-model-len", type=int, default=512)
        parser.add_argument("--max-num-seqs", type=int, default=16)
        parser.add_argument("--max-logprobs", type=int, default=5)
        parser.add_argument("--generation-config", default="auto")
        parser.add_argument("--kv-events-config", type=json.loads)
        parser.add_argument("--disable-log-stats", action="store_true")
        parser.add_argument("--no-enable-prefix-caching", action="store_true")
        parser.add_argument("--structured-outputs-config", type=json.loads)
        parser.add_argument("--stub-without-cache", action="store_true")  # it has to be asked for
        parser.add_argument("--stub-step-ms", type=float, default=2.0)
        parser.add_argument("--stub-load-s", type=float, default=0.0)
        parser.add_argument("--stub-core-error", default="")
        parser.add_argument("--stub-write", default="")
        return parser

    @classmethod
    def from_cli_args(cls, given: argparse.Namespace) -> "AsyncEngineArgs":
        return cls(given)

    def create_engine_config(self, usage: UsageContext) -> types.SimpleNamespace:
        given = self.given
        if given.max_model_len > 8192:
            raise ValueError(f"max_model_len ({given.max_model_len}) is greater than 8192")
        assert given.no_enable_prefix_caching == given.stub_without_cache
        assert given.generation_config == "vllm"
        assert given.structured_outputs_config == {"backend": "guidance"}
        events = given.kv_events_config and types.SimpleNamespace(**given.kv_events_config)
        return types.SimpleNamespace(
            given=given,
            model_config=types.SimpleNamespace(
                dtype="torch.bfloat16",
                quantization=None,
                skip_tokenizer_init=given.skip_tokenizer_init,
                max_model_len=given.max_model_len,
                get_vocab_size=lambda: VOCAB_SIZE,
            ),
            cache_config=types.SimpleNamespace(num_gpu_blocks=NUM_BLOCKS, block_size=BLOCK_SIZE),
            scheduler_config=types.SimpleNamespace(max_num_seqs=given.max_num_seqs),
            parallel_config=types.SimpleNamespace(data_parallel_size=1),
            speculative_config=None,
            kv_events_config=events,
        )


class AsyncLLM:
    """Sends sequences to the process that computes, and hands out what comes."""

    def __init__(self, config: types.SimpleNamespace) -> None:
        self.vllm_config = config
        self.errored = False
        self._queues: dict[str, asyncio.Queue[tuple[list[int], str | None, int] | None]] = {}
        self._answers: list[asyncio.Future[bool]] = []
        context: Any = multiprocessing.get_context(os.environ["VLLM_WORKER_MULTIPROC_METHOD"])
        self._pipe, theirs = context.Pipe()
        given = config.given
        if given.stub_write:
            os.write(int(sys.argv[1]), given.stub_write.encode())
        time.sleep(given.stub_load_s)
        self._process = context.Process(
            target=run_core,
            args=(theirs, given.stub_step_ms / 1000, given.stub_core_error, given.kv_events_config or {}),
            daemon=True,
        )
        self._process.start()
        theirs.close()
        try:
            print(f"INFO 11-29 12:00:00 [core.py:1] core {self._pipe.recv()}", flush=True)
        except EOFError:
            raise RuntimeError("Engine core initialization failed. See root cause above.") from None
        loop = asyncio.get_running_loop()
        loop.add_reader(self._pipe.fileno(), self._read)

    @classmethod
    def from_vllm_config(
        cls, config: types.SimpleNamespace, *, usage_context: UsageContext, disable_log_stats: bool
    ) -> "AsyncLLM":
        return cls(config)

    async def generate(
        self,
        prompt: dict[str, Any],
        sampling: SamplingParams,
        request_id: str,
    ) -> AsyncIterator[types.SimpleNamespace]:
        if self.errored:
            raise EngineDeadError
        queue = self._queues[request_id] = asyncio.Queue()
        limit = self.vllm_config.model_config.max_model_len - len(prompt["prompt_token_ids"])
        if limit <= 0:
            raise ValueError("The decoder prompt is longer than the maximum model length")
        tokens = list(prompt["prompt_token_ids"])
        if tokens[-1] == TELLS_SALT:
            tokens[-1] = len(prompt.get("cache_salt", "")) - 1
        self._pipe.send(("open", request_id, tokens, sampling.fields, limit, prompt.get("cache_salt", "")))
        finished = None
        try:
            while not finished:
                item = await queue.get()
                if item is None:
                    raise EngineDeadError
                came, finished, cached = item
                yield types.SimpleNamespace(
                    outputs=[_completion(came, finished, sampling.fields)], num_cached_tokens=cached
                )
        except GeneratorExit:
            await self.abort(request_id)
            raise
        finally:
            self._queues.pop(request_id, None)

    async def abort(self, request_id: str) -> None:
        if not self.errored:
            self._pipe.send(("close", request_id))
        if request_id in self._queues:
            self._queues[request_id].put_nowait(([], "abort", 0))

    async def is_sleeping(self) -> bool:
        if self.errored:
            raise EngineDeadError
        answer: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._answers.append(answer)
        self._pipe.send(("ping",))
        return await answer

    def shutdown(self) -> None:
        self._process.terminate()
        self._process.join()

    def _read(self) -> None:
        try:
            message = self._pipe.recv()
        except (EOFError, ConnectionError):
            self.errored = True
            asyncio.get_running_loop().remove_reader(self._pipe.fileno())
            for queue in self._queues.values():
                queue.put_nowait(None)
            for answer in self._answers:
                answer.set_exception(EngineDeadError())
            return
        if message == "pong":
            self._answers.pop(0).set_result(False)
            return
        for request_id, *came in message:
            if request_id in self._queues:
                self._queues[request_id].put_nowait(tuple(came))


def _completion(tokens: list[int], finished: str | None, fields: dict[str, Any]) -> types.SimpleNamespace:
    """The chosen token is the likeliest if it is greedy, else the second."""
    logprobs = None
    if "logprobs" in fields:
        ranks = (1, 2) if fields["temperature"] == 0 else (2, 1)
        logprobs = []
        for token in tokens:
            ranked = zip((token, token + 1, token + 2), (*ranks, 3), strict=True)
            logprobs.append(
                {
                    token_id: types.SimpleNamespace(logprob=0.5 - rank, rank=rank)
                    for token_id, rank in ranked
                    if rank <= max(fields["logprobs"], ranks[0])
                }
            )
    return types.SimpleNamespace(token_ids=tokens, finish_reason=finished, logprobs=logprobs)


def _add_module(name: str, **members: object) -> None:
    parent = __name__
    for part in name.split("."):
        module = sys.modules.setdefault(f"{parent}.{part}", types.ModuleType(f"{parent}.{part}"))
        parent = module.__name__
    vars(sys.modules[parent]).update(members)


_add_module("engine.arg_utils", AsyncEngineArgs=AsyncEngineArgs)
_add_module(
    "sampling_params", RequestOutputKind=RequestOutputKind, StructuredOutputsParams=StructuredOutputsParams
)
_add_module("usage.usage_lib", UsageContext=UsageContext)
_add_module("utils.argparse_utils", FlexibleArgumentParser=argparse.ArgumentParser)
_add_module("v1.engine.async_llm", AsyncLLM=AsyncLLM)
