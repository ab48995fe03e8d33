"""`ryz bench waking`: options and tables of how soon a model answers that is asleep."""

import tempfile
from contextlib import ExitStack
from pathlib import Path

from benchmarks.lib.machine import SERVING_PACKAGES
from benchmarks.stack_plans import WakingPlan
from cli.bench.own_stack import own_stack
from cli.bench.report import AsJson, Report, counting_bar, print_line, print_table, reporting
from cli.command_options import with_options
from cli.console import err
from cli.models.resolve import resolve_model


@with_options
def waking(plan: WakingPlan, *, as_json: AsJson = False) -> None:
    """Time to first token of a model that is asleep, of one that is loaded, and of its first load.

    Starts a stack with an empty directory for packed weights, and takes it down again.
    """
    from benchmarks.waking.waking import measure  # noqa: PLC0415 (keeps `ryz bench --help` quick)

    with (
        reporting("waking", _show, as_json=as_json, packages=SERVING_PACKAGES) as report,
        ExitStack() as cleanup,
    ):
        err.print("starting a stack", style="dim")
        folder = Path(cleanup.enter_context(tempfile.TemporaryDirectory(prefix="ryz-bench-")))
        models = folder / "models.toml"
        source = resolve_model(plan.model)
        models.write_text(f'[[models]]\nname = "asleep"\nsource = "{source}"\nload = "demand"\n')
        stack = cleanup.enter_context(
            own_stack({"--models": models}, {"RYZ_PACKED_DIR": str(folder / "packed")})
        )
        progress = cleanup.enter_context(counting_bar(plan.rounds + 1))
        report.update(measure(plan, stack, progress))
        report.update(model=plan.model)


def _show(report: Report) -> None:
    names = list(report["rows"][0])
    print_table("streamed requests", report["rows"], {name: f"{{{name}}}" for name in names})
    print_line(f"first load, which packs the weights: {report['first_load_ms']:.0f} ms")
    facts = report["machine"]
    print_line(f"{facts['cpu']}, {facts['usable_cores']} cores, commit {report['commit']}")
