"""Writes the tables of the engine in docs/performance.md from the result files of `ryz bench engine`.

Run as `python -m tools.docs.engine_results`; `--check` fails when they are out of date. What
is between the two marks of the page is replaced, all else is written by hand.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tools.docs.compatibility import table
from tools.docs.pages import write_page

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "performance.md"
RESULTS = ROOT / "benchmarks" / "results"
BEGIN = "<!-- engine results: written by `python -m tools.docs.engine_results` -->\n"
END = "<!-- end of the engine results -->\n"
_HEADS = (
    "precision", "ranks", "batch", "prefill", "decode", "quality",
    "peer", "its prefill", "we", "its decode", "we", "its quality",
)  # fmt: skip


def render(results: Path) -> str:
    """Render the tables of all result files that have peers.

    Args:
        results: The directory of the files.
    """
    parts = []
    for path in sorted(results.glob("engine-*.json")):
        report = json.loads(path.read_text(encoding="utf-8"))
        rows = [cells for row in report["rows"] for cells in _cells(row)]
        if not rows:
            continue
        first, facts = report["rows"][0], report["machine"]
        about = (
            f"**{first['model']}**, prompts of {first['prompt']} tokens, {first['tokens']} generated: "
            f"{facts['usable_cores']} cores of {facts['cpu']}, {_kernels(report)}commit {report['commit']} "
            f"([{path.name}](../benchmarks/results/{path.name})).\n\n"
        )
        parts.append(about + table(_HEADS, rows))
    return "\n".join(parts)


def _kernels(report: dict[str, Any]) -> str:
    """Name the instruction sets of our kernels; empty if the file does not say."""
    words = [str(engine.get("kernels", "")).split() for engine in report.get("engines", [])]
    named = sorted({word for one in words for word in one if word in ("avx2", "avxvnni", "avx512")})
    return f"kernels for {' and '.join(named)}, " if named else ""


def with_tables(page: str, tables: str) -> str:
    """Return the page with the tables between its marks.

    Raises:
        ValueError: It has not both marks, in this order.
    """
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{PAGE.name} has lost a mark: {BEGIN.strip()} or {END.strip()}")
    return f"{before}{BEGIN}\n{tables}\n{END}{after}"


def _cells(row: dict[str, Any]) -> Iterator[list[str]]:
    """Yield a line of the table for each peer of a row."""
    own = [
        row["precision"],
        f"{row['tp']} x {row['threads']}",
        str(row["batch"]),
        f"{row['prefill_tokens_per_s']:,.0f}",
        f"{row['decode_tokens_per_s']:,.0f}",
        _quality(row),
    ]
    for name, peer in row["peers"].items():
        if peer["decode_tokens_per_s"] is None:
            yield [*own, name, "-", "", "-", "", str(peer["note"]).replace("|", " ")]
            continue
        rates = [
            text
            for rate in ("prefill", "decode")
            for text in (
                f"{peer[f'{rate}_tokens_per_s']:,.0f} {peer.get(f'{rate}_type', '')}".rstrip(),
                f"x{peer[f'{rate}_speedup']:.2f}",
            )
        ]
        judged = peer.get("types", {}).get(peer.get("decode_type"), {})
        yield [*own, name, *rates, _quality(judged)]


def _quality(figures: dict[str, Any]) -> str:
    """Perplexity, KL and top-1 against fp32, or a dash."""
    found = figures.get("quality")
    if found is None:
        return "-"
    return f"{found['perplexity_change']:+.2%}, {found['kl']:.4f}, {found['top1']:.1%}"


def main() -> None:
    """Write the page, or check it with `--check`."""
    write_page(PAGE, with_tables(PAGE.read_text(encoding="utf-8"), render(RESULTS)))


if __name__ == "__main__":
    main()
