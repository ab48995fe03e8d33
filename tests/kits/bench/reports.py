"""Invented benchmark reports."""

from typing import Any

ROW = {
    "model", "precision", "tp", "batch", "prefill_tokens_per_s", "decode_tokens_per_s", "collectives_share",
    "bandwidth_share", "peers",
}  # fmt: skip


async def known_bandwidth(processes: int, threads: int, device: str = "cpu") -> float:
    return 1e9 * processes * threads


QUALITY = {"perplexity_change": 0.25, "kl": 0.125, "top1": 0.75, "places": 1020}

REPORT: dict[str, Any] = {
    "rows": [
        {
            "model": "m", "precision": "int8", "tp": 2, "threads": 1, "batch": 8, "prompt": 128, "tokens": 48,
            "prefill_tokens_per_s": 2000.0, "decode_tokens_per_s": 1500.0, "collectives_share": 0.05,
            "step_ms": {"p50": 5.25, "p99": 6.0}, "bandwidth_share": 0.5, "bandwidth_gb_per_s": 30.0,
            "parts": {"linears": 3.0, "other": 1.0, "leader": 0.1},
            "peers": {
                "llama.cpp": {
                    "prefill_tokens_per_s": 1000.0, "decode_tokens_per_s": 500.0, "prefill_speedup": 2.0,
                    "decode_speedup": 3.0, "prefill_type": "Q8_0", "decode_type": "Q4_0",
                    "types": {"Q4_0": {"quality": QUALITY}},
                },
                "transformers": {
                    "prefill_tokens_per_s": None, "decode_tokens_per_s": None, "note": "not available: int8",
                },
            },
        }
    ],
    "engines": [
        {
            "precision": "int8", "tp": 2, "load_s": 0.5, "start_s": 0.7, "peak_rss_mb": [100.0, 99.0],
            "kernels": "native",
        },
    ],
    "independent": [
        {
            "precision": "int8", "tp": 2, "batch": 8, "speedup_over_one_rank": 1.8,
            "share_of_independent_ranks": 0.95, "collectives_share": 0.05,
            "decode_tokens_per_s": {
                "group": 1500.0, "one_rank_alone": 830.0, "independent_ranks_together": 1580.0,
            },
        }
    ],
    "load_s": 0.5, "peak_rss_mb": [100.0, 99.0],
}  # fmt: skip
