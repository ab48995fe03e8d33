"""Writes the table of docs/sizing.md: what measured models give on two cores, and what a million tokens take.

Run as `python -m tools.docs.manual.sizing`; `--check` fails when it is out of date. The rest of the page is
written by hand.
"""

import json
from pathlib import Path
from typing import Any

from tools.docs.compatibility import table
from tools.docs.engine_results import RESULTS, ROOT
from tools.docs.pages import write_page

PAGE = ROOT / "docs" / "sizing.md"
BEGIN = "<!-- sizes: written by `python -m tools.docs.manual.sizing` -->\n"
END = "<!-- end of the sizes -->\n"
# the newest result of each model, precision and processor
SHOWN = {
    "engine-smollm2-135m-codes-2c-epyc-918628ee2888.json": "SmolLM2-135M, Q4_1",
    "engine-smollm2-135m-codes-2c-xeon-c931a157fca1.json": "SmolLM2-135M, Q4_1",
    "engine-smollm2-135m-avx2-2c-xeon-c931a157fca1.json": "the same with the kernels for AVX2",
    "engine-smollm2-bf16-vllm-2c-epyc-cde59e88a744.json": "SmolLM2-135M",
    "engine-110m-moe-2c-epyc-7f591391c2e1.json": "mixture of 506M, 110M active",
    "engine-1.1b-2c-epyc-b3327edcb857.json": "1.1B",
    "engine-1.1b-q4_0-2c-xeon-c931a157fca1.json": "1.1B, Q4_0",
    "engine-1.1b-tq2_0-2c-xeon-c931a157fca1.json": "1.1B, TQ2_0",
}
_HEADS = (
    "model", "precision", "two cores of", "a prompt, tokens/s", "one stream, tokens/s", "8 streams together",
    "core hours for a million tokens", "result",
)  # fmt: skip


def render(results: Path) -> str:
    """Render the table from the result files.

    Args:
        results: The directory of the files.
    """
    rows = []
    for name, model in SHOWN.items():
        report = json.loads((results / name).read_text(encoding="utf-8"))
        alone, many = _best(report["rows"], 1), _best(report["rows"], 8)
        rate, cores = many["decode_tokens_per_s"], report["machine"]["usable_cores"]
        rows.append([
            model,
            alone["precision"],
            report["machine"]["cpu"].replace("(R)", "").replace(" Processor", ""),
            f"{alone['prefill_tokens_per_s']:,.0f}",
            f"{alone['decode_tokens_per_s']:,.0f}",
            f"{rate:,.0f}",
            f"{cores * 1e6 / rate / 3600:.2f}",
            f"[{report['commit'][:8]}](../benchmarks/results/{name})",
        ])  # fmt: skip
    return table(_HEADS, rows)


def _best(rows: list[dict[str, Any]], batch: int) -> dict[str, Any]:
    return max((row for row in rows if row["batch"] == batch), key=lambda row: row["decode_tokens_per_s"])


def main() -> None:
    """Write the page, or check it with `--check`."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    _, _, after = rest.partition(END)
    write_page(PAGE, f"{before}{BEGIN}\n{render(RESULTS)}\n{END}{after}")


if __name__ == "__main__":
    main()
