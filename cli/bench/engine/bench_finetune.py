"""`ryz bench finetune`: options and tables of the training of adapters."""

import tempfile
from pathlib import Path

from benchmarks.engine_plans import FinetuneBenchPlan
from cli.bench.report import AsJson, Report, counting_bar, print_line, print_table, reporting
from cli.command_options import with_options
from cli.console import err, fail

_PACKAGES = ("torch", "transformers", "peft")


@with_options
def finetune(plan: FinetuneBenchPlan, *, as_json: AsJson = False) -> None:
    """Speed and peak memory of training an adapter on the CPU, one number of bits after the other.

    With --facts a model learns a made-up fact sheet (200 chats, 40 facts), and is asked before and after, in
    words that it has not learned from, and about facts that it was not taught.
    """
    from benchmarks.finetune.finetune import measure  # noqa: PLC0415 (keeps `ryz bench --help` quick)
    from cli.finetune.base_files import find_base, float_directory  # noqa: PLC0415
    from cli.finetune.command import require_packages  # noqa: PLC0415
    from shared.host.cores_and_memory import usable_cores  # noqa: PLC0415

    require_packages()
    if unknown := [bits for bits in plan.base_bits if bits not in (4, 16, 32)]:
        fail(f"--base-bits are 4, 16 and 32, got {unknown[0]}.", 2)
    base = find_base(str(plan.model))
    with (
        reporting("finetune", _show, as_json=as_json, packages=_PACKAGES) as report,
        tempfile.TemporaryDirectory(prefix="ryz-base-") as scratch,
    ):
        directory, form = float_directory(base, Path(scratch), max(plan.base_bits))
        err.print(form, style="dim", soft_wrap=True)
        with counting_bar(plan.num_steps()) as progress:
            report.update(measure(plan, directory, base.path, plan.threads or usable_cores(), progress))
        report["base"] = form


def _show(report: Report) -> None:
    columns = {
        "bits": "{base_bits}", "layers again": "{recompute}", "steps": "{steps}",
        "tok/s": "{tokens_per_s:,.1f}", "peak MiB": "{peak_mib:,}", "estimated": "{estimate_mib:,}",
        "free": "{free_mib:,}", "CPU s": "{cpu_s:.0f}",
    }  # fmt: skip
    title = f"{report['model']}, rank {report['rank']}, packs of {report['length']} tokens"
    print_table(f"{title}, {report['threads']} threads", report["rows"], columns)
    learned = report["learned"]
    if not learned:
        return
    rows = [{"when": when, **learned[when]} for when in ("before", "after")]
    shares = {
        "": "{when}", "taught, other words": "{taught:.1%}", "taught, same words": "{same_words:.1%}",
        "untaught": "{untaught:.1%}",
    }  # fmt: skip
    print_table("right answers", rows, shares)
    done = learned["training"]
    print_line(
        f"{done['steps']} steps, {done['tokens']:,} tokens, {done['wall_s']:.0f} s ({done['cpu_s']:.0f} s of "
        f"CPU time), peak {done['peak_mib']:,} MiB of {done['free_mib']:,} MiB free"
    )
