"""llama.cpp as a peer, through llama-cpp-python's low-level interface: a batch of sequences of equal length.

Decodes as a server with continuous batching would: a call gives every sequence its next token, greedily.
The weights come from `gguf_file.py`.
"""

import ctypes
import tempfile
import time
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.lib.measuring import BenchError
from benchmarks.peers.base import Timing
from benchmarks.peers.gguf_file import write_gguf

_UBATCH = 512  # tokens that llama.cpp computes at a time; its default


class LlamaCpp:
    """See `Peer`.

    Args:
        model: Directory in Hugging Face format.
        precision: fp32, fp16, bf16 or int8 (Q8_0).
        max_sequences: Largest batch.
        max_length: Longest prompt with its answer, in tokens.
    """

    def __init__(self, model: Path, precision: str, max_sequences: int, max_length: int) -> None:
        try:
            llama_cpp: Any = import_module("llama_cpp")  # of the optional extra `peers`
        except ImportError:
            raise BenchError(
                "the package llama-cpp-python is not installed; `pip install 'ryzanstein[peers]'`"
            ) from None
        self._api = llama_cpp
        self._quiet = llama_cpp.llama_log_callback(
            lambda *_: None
        )  # referenced here because llama.cpp calls it later
        llama_cpp.llama_log_set(self._quiet, ctypes.c_void_p(0))
        llama_cpp.llama_backend_init()
        with tempfile.TemporaryDirectory(prefix="ryz-peer-") as scratch:
            path = Path(scratch) / "model.gguf"
            write_gguf(model, path, precision)
            parameters = llama_cpp.llama_model_default_params()
            parameters.n_gpu_layers = 0
            self._model = llama_cpp.llama_model_load_from_file(str(path).encode(), parameters)
        if not self._model:
            raise BenchError(f"llama.cpp did not load the model {model}")
        self._vocab_size = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self._model))
        self._max_length = max_length
        self._context: Any = None
        self._made_for = 0
        self._batch = llama_cpp.llama_batch_init(max_sequences * max_length, 0, max_sequences)

    def run_batch(self, prompts: Sequence[Sequence[int]], num_tokens: int, threads: int) -> Timing:
        """See `Peer`."""
        self._make_context(len(prompts))
        api = self._api
        api.llama_set_n_threads(self._context, threads, threads)
        api.llama_memory_clear(api.llama_get_memory(self._context), False)
        began = time.perf_counter()
        rows = []
        for sequence, prompt in enumerate(prompts):
            for position, token in enumerate(prompt):
                rows.append((token, position, sequence, position == len(prompt) - 1))
        newest = self._decode(rows)
        tokens = [[token] for token in newest]
        prefilled = time.perf_counter()
        length = len(prompts[0])
        for step in range(num_tokens - 1):
            rows = [(token, length + step, sequence, True) for sequence, token in enumerate(newest)]
            newest = self._decode(rows)
            for generated, token in zip(tokens, newest, strict=True):
                generated.append(token)
        return Timing(prefilled - began, time.perf_counter() - prefilled, tokens)

    def _make_context(self, num_sequences: int) -> None:
        """llama.cpp is fastest with a context of the batch's size."""
        if self._made_for == num_sequences:
            return
        api = self._api
        if self._context:
            api.llama_free(self._context)
        parameters = api.llama_context_default_params()
        parameters.n_ctx = num_sequences * (-(-self._max_length // 256) * 256)
        parameters.n_batch = num_sequences * self._max_length
        parameters.n_ubatch = min(_UBATCH, parameters.n_batch)
        parameters.n_seq_max = num_sequences
        parameters.no_perf = True
        self._context = api.llama_init_from_model(self._model, parameters)
        if not self._context:
            raise BenchError(f"llama.cpp has no memory for {num_sequences} sequences")
        self._made_for = num_sequences

    def _decode(self, rows: Sequence[tuple[int, int, int, bool]]) -> list[int]:
        """Compute (token, position, sequence, whether to sample) rows; the sampled tokens in their order."""
        batch, api = self._batch, self._api
        batch.n_tokens = len(rows)
        for index, (token, position, sequence, wanted) in enumerate(rows):
            batch.token[index] = token
            batch.pos[index] = position
            batch.n_seq_id[index] = 1
            batch.seq_id[index][0] = sequence
            batch.logits[index] = wanted
        if code := api.llama_decode(self._context, batch):
            raise BenchError(f"llama.cpp's llama_decode returned {code}")
        logits: NDArray[np.float32] = np.ctypeslib.as_array(
            api.llama_get_logits(self._context), shape=(sum(row[3] for row in rows), self._vocab_size)
        )
        return [int(token) for token in logits.argmax(axis=1)]
