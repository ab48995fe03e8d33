"""llama.cpp as a peer, through llama-cpp-python's low-level interface.

Batches decode as in a server with continuous batching: a call gives every sequence its next token, greedily.
llama.cpp itself brings the weights of a GGUF file into the wanted type.
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
from benchmarks.peers.base import PeerLoad, Timing

AS_IT_IS = "file"
FILE_TYPES = {
    "F32": "ALL_F32",
    "F16": "MOSTLY_F16",
    "BF16": "MOSTLY_BF16",
    **{
        kind: f"MOSTLY_{kind}"
        for kind in (
            *("Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q2_K", "Q3_K_S", "Q3_K_M", "Q4_K_S", "Q4_K_M"),
            *("Q5_K_S", "Q5_K_M", "Q6_K", "IQ4_NL", "IQ4_XS", "TQ1_0", "TQ2_0"),
        )
    },
}
_UBATCH = 512  # tokens that llama.cpp computes at a time; its default
Row = tuple[int, int, int, bool]  # token, position, sequence, whether its logits are wanted


class LlamaCpp:
    """See `Peer`, and `LogitSource` of `ryz bench quality`.

    Args:
        load: A GGUF file; its type is one of `FILE_TYPES`, or "file": as the file has them. `run_batch` may
            say another number of threads.
    """

    def __init__(self, load: PeerLoad) -> None:
        if load.kind not in (AS_IT_IS, *FILE_TYPES):
            known = ", ".join((AS_IT_IS, *FILE_TYPES))
            raise BenchError(f"not available: llama.cpp's types are {known}, not {load.kind}")
        try:
            llama_cpp: Any = import_module("llama_cpp")  # of the optional extra `peers`
        except ImportError:
            raise BenchError(
                "the package llama-cpp-python is not installed; `pip install 'ryzanstein[peers]'`"
            ) from None
        self._api = llama_cpp
        # referenced here because llama.cpp calls it later
        self._quiet = llama_cpp.llama_log_callback(lambda *_: None)
        llama_cpp.llama_log_set(self._quiet, ctypes.c_void_p(0))
        llama_cpp.llama_backend_init()
        with tempfile.TemporaryDirectory(prefix="ryz-peer-") as scratch:
            parameters = llama_cpp.llama_model_default_params()
            parameters.n_gpu_layers = 0
            path = self._converted(Path(load.model), load.kind, Path(scratch))
            self._model = llama_cpp.llama_model_load_from_file(str(path).encode(), parameters)
        if not self._model:
            raise BenchError(f"llama.cpp did not load the model {load.model}")
        self._vocab_size = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self._model))
        self._max_length = load.max_length
        self._threads = load.threads
        self._context: Any = None
        self._made_for = 0
        self._lengths: list[int] = []
        self._batch = llama_cpp.llama_batch_init(load.max_sequences * load.max_length, 0, load.max_sequences)

    def run_batch(self, prompts: Sequence[Sequence[int]], num_tokens: int, threads: int) -> Timing:
        """See `Peer`."""
        self._make_context(len(prompts))
        self._api.llama_set_n_threads(self._context, threads, threads)
        began = time.perf_counter()
        rows = []
        for sequence, prompt in enumerate(prompts):
            for position, token in enumerate(prompt):
                rows.append((token, position, sequence, position == len(prompt) - 1))
        tokens = [self._decode(rows).argmax(axis=1).tolist()]
        prefilled = time.perf_counter()
        for position in range(len(prompts[0]), len(prompts[0]) + num_tokens - 1):
            rows = [(token, position, sequence, True) for sequence, token in enumerate(tokens[-1])]
            tokens.append(self._decode(rows).argmax(axis=1).tolist())
        return Timing(prefilled - began, time.perf_counter() - prefilled, np.transpose(tokens).tolist())

    def begin(self, sequences: int, texts: Sequence[Sequence[int]] | None = None) -> None:
        """See `LogitSource`."""
        del texts
        self._make_context(sequences)
        self._api.llama_set_n_threads(self._context, self._threads, self._threads)
        self._lengths = [0] * sequences

    def feed(self, tokens: Sequence[Sequence[int]]) -> NDArray[np.float32]:
        """See `LogitSource`."""
        rows = []
        for sequence, more in enumerate(tokens):
            for token in more:
                rows.append((token, self._lengths[sequence], sequence, False))
                self._lengths[sequence] += 1
            if more:
                rows[-1] = (*rows[-1][:3], True)
        return self._decode(rows)

    def _converted(self, source: Path, kind: str, scratch: Path) -> Path:
        """Return a file of the model in that type, made in `scratch`."""
        if kind == AS_IT_IS:
            return source
        target = scratch / "model.gguf"
        parameters = self._api.llama_model_quantize_default_params()
        parameters.ftype = getattr(self._api, f"LLAMA_FTYPE_{FILE_TYPES[kind]}")
        parameters.allow_requantize = True
        if self._api.llama_model_quantize(
            str(source).encode(), str(target).encode(), ctypes.byref(parameters)
        ):
            raise BenchError(f"not available: llama.cpp does not convert {source} to {kind}")
        return target

    def _make_context(self, num_sequences: int) -> None:
        """Make an empty context; llama.cpp is fastest with one of the batch's size."""
        api = self._api
        if self._made_for == num_sequences:
            api.llama_memory_clear(api.llama_get_memory(self._context), False)
            return
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

    def _decode(self, rows: Sequence[Row]) -> NDArray[np.float32]:
        """Compute rows; return the wanted logits, [wanted, vocab], valid until the next call."""
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
        return logits
