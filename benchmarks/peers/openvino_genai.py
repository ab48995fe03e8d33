"""OpenVINO GenAI as a peer: its continuous batching for speed, and the same network's logits for quality.

The directory is what `optimum-cli export openvino` writes.
"""

import os
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.lib.measuring import BenchError
from benchmarks.peers.base import PeerLoad, Timing, whole_runs

Logits = NDArray[np.float32]
_BATCHED = 512  # tokens of a step
_CACHE_GB = 1


class OpenVino:
    """See `Peer`, and `LogitSource` of `ryz bench quality`.

    Args:
        load: The directory; its type is the one by which it was exported.
    """

    def __init__(self, load: PeerLoad) -> None:
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
        self._threads = load.threads
        self._openvino: Any = import_module("openvino")
        options = {"INFERENCE_NUM_THREADS": load.threads}
        if load.logits:
            core = self._openvino.Core()
            self._network: Any = core.compile_model(Path(load.model) / "openvino_model.xml", "CPU", options)
            self._inputs = {name for one in self._network.inputs for name in one.names}
            self._requests: list[Any] = []
            self._lengths: list[int] = []
            return
        genai: Any = import_module("openvino_genai")
        scheduler = genai.SchedulerConfig()
        scheduler.cache_size = _CACHE_GB
        scheduler.max_num_seqs = load.max_sequences
        scheduler.max_num_batched_tokens = _BATCHED
        scheduler.enable_prefix_caching = False
        self._genai = genai
        self._pipeline: Any = genai.ContinuousBatchingPipeline(load.model, scheduler, "CPU", options)

    def run_batch(self, prompts: Sequence[Sequence[int]], num_tokens: int, threads: int) -> Timing:
        """See `Peer`."""
        if threads != self._threads:
            raise BenchError(f"OpenVINO was loaded for {self._threads} threads, not {threads}: use one --tp")
        return whole_runs(self._generate, prompts, num_tokens)

    def begin(self, sequences: int, texts: Sequence[Sequence[int]] | None = None) -> None:
        """See `LogitSource`. A sequence's keys and values are the state of its own request."""
        del texts
        while len(self._requests) < sequences:
            self._requests.append(self._network.create_infer_request())
        for request in self._requests:
            request.reset_state()
        self._lengths = [0] * sequences

    def feed(self, tokens: Sequence[Sequence[int]]) -> Logits:
        """See `LogitSource`."""
        found = []
        for index, more in enumerate(tokens):
            if not more:
                continue
            start = self._lengths[index]
            self._lengths[index] = end = start + len(more)
            given = {
                "input_ids": np.array([more], np.int64),
                "attention_mask": np.ones((1, end), np.int64),
                "position_ids": np.arange(start, end, dtype=np.int64)[None],
                "beam_idx": np.zeros(1, np.int32),
            }
            request = self._requests[index]
            request.infer({name: value for name, value in given.items() if name in self._inputs})
            found.append(np.array(request.get_tensor("logits").data[0, -1], np.float32))
        return np.stack(found)

    def _generate(self, prompts: Sequence[Sequence[int]], num_tokens: int) -> list[list[int]]:
        config = self._genai.GenerationConfig()
        config.max_new_tokens = num_tokens
        config.ignore_eos = True
        config.do_sample = False
        given = [self._openvino.Tensor(np.array([prompt], np.int64)) for prompt in prompts]
        answers = self._pipeline.generate(given, [config] * len(given))
        return [list(answer.m_generation_ids[0]) for answer in answers]
