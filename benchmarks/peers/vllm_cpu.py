"""vLLM's CPU build as a peer, through its offline interface, without a prefix cache.

Its engine runs in this process (`VLLM_ENABLE_V1_MULTIPROCESSING=0`). The logits of every position of a prompt
are taken where its model computes them.
"""

from collections.abc import Sequence
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.lib.measuring import BenchError
from benchmarks.peers.base import PeerLoad, Timing, whole_runs

Logits = NDArray[np.float32]
_BATCHED = 2048  # tokens of a step


class VllmCpu:
    """See `Peer`, and `LogitSource` of `ryz bench quality`.

    Args:
        load: A Hugging Face directory; its type is bfloat16, float16 or float32, of a quantized directory the
            type that it computes in.
    """

    def __init__(self, load: PeerLoad) -> None:
        if load.kind not in ("bfloat16", "float16", "float32"):
            raise BenchError(
                f"not available: vLLM's types are bfloat16, float16 and float32, not {load.kind}"
            )
        vllm: Any = import_module("vllm")
        self._vllm = vllm
        self._threads = load.threads
        self._model: Any = vllm.LLM(
            load.model,
            dtype=load.kind,
            max_model_len=load.max_length + 1,
            max_num_seqs=load.max_sequences,
            max_num_batched_tokens=max(_BATCHED, load.max_length + 1),
            enable_prefix_caching=False,
            disable_log_stats=True,
        )
        self._seen: list[Logits] = []
        self._texts: list[Logits] = []
        self._sequences: list[list[int]] = []
        if load.logits:
            self._watch()

    def run_batch(self, prompts: Sequence[Sequence[int]], num_tokens: int, threads: int) -> Timing:
        """See `Peer`."""
        if threads != self._threads:
            raise BenchError(f"vLLM was loaded for {self._threads} threads, not for {threads}: use one --tp")
        return whole_runs(self._generate, prompts, num_tokens)

    def begin(self, sequences: int, texts: Sequence[Sequence[int]] | None = None) -> None:
        """See `LogitSource`."""
        self._sequences = [[] for _ in range(sequences)]
        self._texts = [self._all_places(text) for text in texts or ()]

    def feed(self, tokens: Sequence[Sequence[int]]) -> Logits:
        """See `LogitSource`."""
        found = []
        for index, more in enumerate(tokens):
            if not more:
                continue
            self._sequences[index] += more
            if self._texts:
                found.append(self._texts[index][len(self._sequences[index]) - 1])
                continue
            self._seen.clear()
            self._generate([self._sequences[index]], 1)
            found.append(self._seen[-1][-1])
        return np.stack(found)

    def _generate(
        self, prompts: Sequence[Sequence[int]], num_tokens: int, positions: int | None = None
    ) -> list[list[int]]:
        sampling = self._vllm.SamplingParams(
            temperature=0, max_tokens=num_tokens, ignore_eos=True, prompt_logprobs=positions
        )
        given = [{"prompt_token_ids": list(prompt)} for prompt in prompts]
        answers = self._model.generate(given, sampling, use_tqdm=False)
        return [list(answer.outputs[0].token_ids) for answer in answers]

    def _all_places(self, text: Sequence[int]) -> Logits:
        """Return the logits after each token of a text but the last, [positions, vocab]."""
        self._seen.clear()
        self._generate([text], 1, 0)
        found = next((one for one in self._seen if len(one) == len(text) - 1), None)
        if found is None:
            raise BenchError(
                "not available: this version of vLLM does not compute the logits of a prompt at once"
            )
        return found

    def _watch(self) -> None:
        """Keep what the model's `compute_logits` returns."""
        engine = self._model.llm_engine
        try:
            model = engine.model_executor.driver_worker.worker.model_runner.model
        except AttributeError:
            raise BenchError("not available: this version of vLLM hides its model") from None
        compute = model.compute_logits

        def watched(*arguments: Any, **named: Any) -> Any:
            logits = compute(*arguments, **named)
            self._seen.append(logits.float().numpy().copy())
            return logits

        model.compute_logits = watched
