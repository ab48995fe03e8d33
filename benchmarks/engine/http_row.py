"""Turns streams that ran side by side into the HTTP figures of a row.

Counted like the engine's own rows, while all streams decode; times are those of the client. CPU time is that
of whole answers, their prompts included.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Any

from benchmarks.lib.measuring import BenchError, milliseconds, percentiles
from benchmarks.lib.sse import StreamedAnswer


@dataclass(frozen=True, slots=True)
class StreamRun:
    """All streams of one repeat, and the CPU seconds of each process meanwhile."""

    streams: Sequence[StreamedAnswer]
    cpu_s: Mapping[str, float]

    def window(self) -> tuple[float, float]:
        """Return the time from the first text of the last stream to the end of the first one.

        Raises:
            BenchError: The streams never decoded all together.
        """
        began = max(stream.times[0] if stream.times else stream.ended for stream in self.streams)
        ended = min(stream.ended for stream in self.streams)
        if ended <= began:
            raise BenchError(
                f"the first of {len(self.streams)} streams was complete before the last had its first text; "
                "ask for more --tokens or a smaller batch"
            )
        return began, ended

    def decode_rate(self) -> float:
        """Return tokens a second while all streams decode.

        Tokens that complete no character bring no text of their own: they are spread over those that do.
        """
        began, ended = self.window()
        tokens = 0.0
        for stream in self.streams:
            inside = sum(began < now <= ended for now in stream.times)
            tokens += inside * stream.tokens / len(stream.times)
        return tokens / (ended - began)

    def gaps(self) -> list[float]:
        """Return the seconds between the pieces of text of each stream, while all of them decode."""
        began, ended = self.window()
        found = []
        for stream in self.streams:
            inside = [now for now in stream.times if began <= now <= ended]
            found += [after - before for before, after in pairwise(inside)]
        return found


def http_figures(runs: Sequence[StreamRun], engine_rate: float) -> dict[str, Any]:
    """Return the figures of all repeats; `engine_rate` is the engine's own, in tokens a second.

    Raises:
        BenchError: The streams of a repeat never decoded all together.
    """
    rate = median(run.decode_rate() for run in runs)
    waits = [stream.times[0] - stream.sent for run in runs for stream in run.streams]
    gaps = [gap for run in runs for gap in run.gaps()]
    tokens = sum(stream.tokens for run in runs for stream in run.streams)
    return {
        "decode_tokens_per_s": round(rate, 1),
        "share_of_engine": round(rate / engine_rate, 4),
        **percentiles(waits, "ttft"),
        **percentiles(gaps, "itl"),
        "cpu_ms_per_token": {
            name: milliseconds(sum(run.cpu_s[name] for run in runs) / tokens) for name in runs[0].cpu_s
        },
    }
