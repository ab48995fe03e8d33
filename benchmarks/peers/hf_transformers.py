"""transformers as a peer: the loop that its `generate` runs, without what greedy decoding does not need.

One forward pass for the prompts, then one for each token of all sequences, with its key and value cache.
"""

import time
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

from benchmarks.lib.measuring import BenchError
from benchmarks.peers.base import PeerLoad, Timing


class Transformers:
    """See `Peer`.

    Args:
        load: A directory in Hugging Face format; its type is float32, float16 or bfloat16.

    On a GPU, too, it runs op by op, as `generate` does by default.
    """

    def __init__(self, load: PeerLoad) -> None:
        if load.kind not in ("float32", "float16", "bfloat16"):
            raise BenchError(f"not available: transformers has no {load.kind} on a CPU without more packages")
        try:
            library: Any = import_module("transformers")  # of the optional extra `peers`
        except ImportError:
            raise BenchError(
                "the package transformers is not installed; `pip install 'ryzanstein[peers]'`"
            ) from None
        import torch  # noqa: PLC0415

        library.utils.logging.disable_progress_bar()
        self._torch = torch
        self._model: Any = library.AutoModelForCausalLM.from_pretrained(
            load.model, dtype=getattr(torch, load.kind), local_files_only=True
        ).eval()
        self._device = load.device
        self._model.to(load.device)
        on_gpu = load.device == "cuda"
        self._wait: Callable[[], object] = torch.cuda.synchronize if on_gpu else lambda: None

    def run_batch(self, prompts: Sequence[Sequence[int]], num_tokens: int, threads: int) -> Timing:
        """See `Peer`."""
        torch = self._torch
        torch.set_num_threads(threads)
        columns = []
        with torch.inference_mode():
            began = time.perf_counter()
            inputs = torch.tensor([list(prompt) for prompt in prompts], device=self._device)
            out = self._model(input_ids=inputs, use_cache=True, logits_to_keep=1)
            columns.append(out.logits[:, -1].argmax(-1))
            self._wait()
            prefilled = time.perf_counter()
            for _ in range(num_tokens - 1):
                out = self._model(
                    input_ids=columns[-1].unsqueeze(1), past_key_values=out.past_key_values, use_cache=True
                )
                columns.append(out.logits[:, -1].argmax(-1))
            tokens = torch.stack(columns, dim=1).tolist()
            ended = time.perf_counter()
        return Timing(prefilled - began, ended - prefilled, tokens)
