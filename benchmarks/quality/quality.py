"""Compares the distributions of the next token with those of fp32, at all positions of a text and of answers.

All engines compute the same tokens side by side: each window of the text is fed token by token, and answers
are the greedy ones of fp32. So every position has the whole beginning of its window as its context, and all
logits of a position are available at once.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, Protocol

from benchmarks.engine_plans import QualityPlan, model_name
from benchmarks.lib.child import ChildObject
from benchmarks.lib.measuring import Progress
from benchmarks.peers.contest import PeerProcesses, PeerType, peer_types
from benchmarks.peers.start import PeerSizes
from benchmarks.quality.divergence import Distributions, Divergence, Logits
from benchmarks.quality.own_logits import OwnLogits
from benchmarks.quality.scored_texts import chat_prompts, text_windows
from services.worker.model_files.load_model import load_model
from services.worker.rank_protocol.run_config import Precision
from shared.host.cores_and_memory import usable_cores

_AT_ONCE = 20  # sequences side by side; bounds the memory of their KV
_STEPS = 64  # tokens of each window between reports of progress
_FEED_S = 1800.0


class LogitSource(Protocol):
    """A loaded model that continues given sequences, all at once."""

    def begin(self, sequences: int, texts: Sequence[Sequence[int]] | None = None) -> None:
        """Forget all sequences and begin as many empty ones.

        Args:
            texts: All that they will be fed, if it is known: one token of each at a time, all but the last.
        """
        ...

    def feed(self, tokens: Sequence[Sequence[int]]) -> Logits:
        """Append tokens to the sequences.

        Args:
            tokens: Of each sequence; none for a sequence that has ended.

        Returns:
            The logits after each sequence's last token, for those that got some, [sequences, vocab]; valid
            until the next call.
        """
        ...

    def close(self) -> None:
        """Free its threads or its process."""
        ...


class PeerLogits:
    """A peer's model in its own process. See `LogitSource`."""

    def __init__(self, child: ChildObject) -> None:
        self._child = child

    def begin(self, sequences: int, texts: Sequence[Sequence[int]] | None = None) -> None:
        """See `LogitSource`."""
        self._child.call("begin", sequences, texts, timeout_s=_FEED_S)

    def feed(self, tokens: Sequence[Sequence[int]]) -> Logits:
        """See `LogitSource`."""
        logits: Logits = self._child.call("feed", tokens, timeout_s=_FEED_S)
        return logits

    def close(self) -> None:
        """See `LogitSource`."""
        self._child.close()


Scores = Mapping[str, Divergence]  # by the name of the compared source


def measure(plan: QualityPlan, progress: Progress) -> dict[str, Any]:
    """Return a row for each precision; what peers have is in each row.

    Raises:
        ModelError: The model cannot be computed in one of the precisions.
        BenchError: A peer broke, or the text is too short.
    """
    model = load_model(plan.model, "bench")
    windows, prompts = text_windows(model, plan.tokens, plan.window), chat_prompts(model, plan.chats)
    sequences = min(_AT_ONCE, max(len(windows), len(prompts)))
    length = max([plan.window, *(len(prompt) + plan.answer for prompt in prompts)])

    def load(model: Path, precision: Precision) -> OwnLogits:
        return OwnLogits(model, precision, plan.threads, sequences=sequences, length=length)

    types = _types(plan)
    with ExitStack() as stack:
        progress("loading fp32")
        fp32 = stack.enter_context(closing(load(plan.reference or plan.model, "fp32")))
        others: dict[str, LogitSource] = {}
        for precision in plan.precision:
            progress(f"loading {precision}")
            others[precision] = stack.enter_context(closing(load(plan.model, precision)))
        peer_sizes = PeerSizes(
            max_sequences=sequences, max_length=length,
            threads=plan.threads or usable_cores(), logits=True,
        )  # fmt: skip
        processes = stack.enter_context(PeerProcesses(plan.model, plan.peer_envs))
        for one in types:
            progress(f"loading {one.name}")
            others[one.name] = PeerLogits(processes.load(one, peer_sizes))
        text = score_text(fp32, others, windows, progress)
        chats = score_chats(fp32, others, prompts, (plan.answer, model.eos_ids), progress)
        kernels = {name: own.name for name, own in others.items() if isinstance(own, OwnLogits)}
    figures = {name: text[name].figures() for name in others}
    for name in others if prompts else ():
        figures[name]["chats"] = chats[name].figures()
    peers: dict[str, dict[str, Any]] = {}
    for one in types:
        peers.setdefault(one.peer.name, {})[one.kind] = figures[one.name]
    named = {"model": model_name(plan.model)}
    rows = [
        named | {"precision": precision, "kernels": kernels[precision]}
        | figures[precision] | {"peers": peers}
        for precision in plan.precision
    ]  # fmt: skip
    return {"rows": rows, "window": plan.window, "chats": len(prompts)}


def _types(plan: QualityPlan) -> list[PeerType]:
    return peer_types(plan.peers, ("fp32", "int8", "codes"))


def num_steps(plan: QualityPlan) -> int:
    """Return how often `measure` reports progress, at most."""
    windows = -(-plan.tokens // plan.window)
    loads = 1 + len(plan.precision) + len(_types(plan))
    return loads + -(-windows // _AT_ONCE) * -(-(plan.window - 1) // _STEPS) + -(-plan.chats // _AT_ONCE)


def score_text(
    fp32: LogitSource, others: Mapping[str, LogitSource], windows: list[list[int]], progress: Progress
) -> Scores:
    """Compare the distributions after every token of windows of equal length but the last."""
    scores = {name: Divergence() for name in others}
    for first, batch in _batches(windows):
        _begin(fp32, others, len(batch), batch)
        for index in range(len(batch[0]) - 1):
            if index % _STEPS == 0:
                progress(
                    f"text: windows {first + 1} to {first + len(batch)} of {len(windows)}, token {index}"
                )
            fed, targets = [[window[index]] for window in batch], [window[index + 1] for window in batch]
            _compare(fp32, others, fed, targets, scores)
    return scores


def score_chats(
    fp32: LogitSource,
    others: Mapping[str, LogitSource],
    prompts: list[list[int]],
    until: tuple[int, frozenset[int]],
    progress: Progress,
) -> Scores:
    """Compare the distributions at every token of fp32's greedy answers.

    Args:
        others: What is compared with it.
        prompts: Tokens of the questions.
        until: Most tokens of an answer, and the tokens that end one.
        progress: Called once for each batch.
    """
    scores, (most, eos_ids) = {name: Divergence() for name in others}, until
    for first, batch in _batches(prompts):
        progress(f"chats {first + 1} to {first + len(batch)} of {len(prompts)}")
        _begin(fp32, others, len(batch))
        fed = batch
        for _ in range(most):
            answers = iter(_compare(fp32, others, fed, None, scores))
            drawn = [next(answers) if tokens else None for tokens in fed]
            fed = [[] if token is None or token in eos_ids else [token] for token in drawn]
            if not any(fed):
                break
    return scores


def _batches(sequences: list[list[int]]) -> Iterator[tuple[int, list[list[int]]]]:
    for first in range(0, len(sequences), _AT_ONCE):
        yield first, sequences[first : first + _AT_ONCE]


def _begin(
    fp32: LogitSource,
    others: Mapping[str, LogitSource],
    sequences: int,
    texts: Sequence[Sequence[int]] | None = None,
) -> None:
    for source in (fp32, *others.values()):
        source.begin(sequences, texts)


def _compare(
    fp32: LogitSource,
    others: Mapping[str, LogitSource],
    fed: Sequence[Sequence[int]],
    targets: list[int] | None,
    scores: Scores,
) -> list[int]:
    """Feed all engines and count the positions; return the targets, which are fp32's own choices if None."""
    expected = Distributions.of(fp32.feed(fed))
    targets = expected.top1.tolist() if targets is None else targets
    for name, source in others.items():
        scores[name].add(expected, source.feed(fed), targets)
    return targets
