"""`ryz bench adapter-pool`: options, stack and table of more adapters than a group has memory for."""

import asyncio
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.lib.stack import RunningStack
from benchmarks.stack_plans import AdapterPoolPlan
from cli.bench.inputs import with_model
from cli.bench.own_stack import own_stack
from cli.bench.report import AsJson, Report, counting_bar, print_line, print_table, reporting
from cli.command_options import with_options
from cli.console import err
from cli.stack.model_dir import demo_model


@with_options
def adapter_pool(plan: AdapterPoolPlan, *, as_json: AsJson = False) -> None:
    """Time to first token when more adapters are asked for than a group has memory for, and what a load adds.

    Starts a stack of one group, whose memory for adapters is that of `--slots`, and takes it down again.
    """
    from benchmarks.adapters.random_adapter import adapter_bytes  # noqa: PLC0415 (imports numpy)

    model = with_model(plan).model or demo_model()
    settings = {"RYZ_ADAPTER_BYTES": str(max(2**20, plan.slots * adapter_bytes(model, plan.rank)))}
    with reporting("adapter-pool", _show, as_json=as_json) as report:
        err.print("starting a stack", style="dim")
        options = {"--model": model, "--groups": 1, "--log-level": "warning"}
        most = max(plan.adapters)
        loads = 1 + -(-plan.loads // most) if plan.loads and most > plan.slots else 0
        with (
            counting_bar((plan.rounds + 1) * len(plan.adapters) + loads) as progress,
            own_stack(options, settings) as stack,
        ):
            report.update(asyncio.run(_measure(plan, stack, model, progress)))
        report.update(model=model.name, rank=plan.rank)


async def _measure(
    plan: AdapterPoolPlan, stack: RunningStack, model: Path, progress: Callable[[str], None]
) -> dict[str, Any]:
    from benchmarks.adapters.hot_load import measure_loads  # noqa: PLC0415 (keeps `ryz bench --help` quick)
    from benchmarks.adapters.loaded import load_adapters  # noqa: PLC0415
    from benchmarks.adapters.pool_load import measure  # noqa: PLC0415
    from shared.bus.nats import NatsBus  # noqa: PLC0415
    from shared.client import AdaptersClient  # noqa: PLC0415

    bus = await NatsBus.connect(stack.nats_urls["cli"], name="bench", local=True)
    try:
        with tempfile.TemporaryDirectory(prefix="ryz-adapters-") as folder:
            adapters = await load_adapters(
                bus, stack.model, model, max(plan.adapters), Path(folder), ranks=(plan.rank,)
            )
            report = await measure(plan, stack, [adapter.model for adapter in adapters], progress)
            loads = list[dict[str, Any]]()
            if plan.loads and len(adapters) > plan.slots:
                loads = await measure_loads(plan, stack, AdaptersClient(bus), adapters, progress)
            return report | {"loads": loads}
    finally:
        await bus.close()


def _show(report: Report) -> None:
    names = list(report["rows"][0])
    print_table("streamed requests", report["rows"], {name: f"{{{name}}}" for name in names})
    if report["loads"]:
        columns = {"": "{what}", "p50 ms": "{p50_ms}", "p95 ms": "{p95_ms}", "longest ms": "{longest_ms}"}
        print_table("one adapter after the other", report["loads"], columns)
    print_line(f"memory for {report['slots']} adapters of rank {report['rank']}, {report['model']}")
    facts = report["machine"]
    print_line(f"{facts['cpu']}, {facts['usable_cores']} cores, commit {report['commit']}")
