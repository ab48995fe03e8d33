"""`ryz bench engine`: options, checks and remarks of the engine benchmark."""

import asyncio
from typing import Any

from benchmarks.engine.engine_plan import PEER_PACKAGES, EnginePlan
from cli.bench.bench_engine_view import show
from cli.bench.bench_report import AsJson, counting_bar, reporting, warn
from cli.bench.own_stack import own_stack
from cli.command_options import with_options
from cli.console import fail


@with_options
def engine(plan: EnginePlan, *, as_json: AsJson = False) -> None:
    """Tokens a second of the whole engine (scheduler and ranks), and where a step's time goes.

    Greedy, past every end of sequence, with random prompts, so nothing comes from the prefix cache. Decoding
    is counted while all sequences of the batch decode. Peers compute the same weights on as many threads.
    """
    from benchmarks.engine.engine import measure  # noqa: PLC0415 (keeps `ryz bench --help` quick)

    _check_peers(plan)
    _check_model(plan)
    with (
        reporting(show, as_json=as_json) as report,
        counting_bar(plan.num_steps()) as progress,
    ):
        report.update(asyncio.run(measure(plan, own_stack, progress)))
    for text in remarks(report["rows"]):
        warn(text)


def remarks(rows: list[dict[str, Any]]) -> list[str]:
    """Return why peers did not run, and signs of other load on the machine."""
    notes = {
        f"{name}: {peer['note']}" for row in rows for name, peer in row["peers"].items() if "note" in peer
    }
    disturbed = [str(row["batch"]) for row in rows if row["bandwidth_share"] > 1]
    if disturbed:
        notes.add(
            f"At batch {', '.join(disturbed)} more was read than the memory gave: something else ran while "
            "its bandwidth was measured; measure again on a quiet machine."
        )
    return sorted(notes)


def _check_peers(plan: EnginePlan) -> None:
    from benchmarks.peers import missing_packages  # noqa: PLC0415

    for name in plan.peers:
        if name not in PEER_PACKAGES:
            fail(f"--peer is one of {', '.join(PEER_PACKAGES)}, got {name!r}.", exit_code=2)
        if missing := missing_packages(name):
            fail(
                f"--peer {name} needs {' and '.join(missing)}, not installed here: "
                "`pip install 'ryzanstein[peers]'` brings them.",
                exit_code=2,
            )


def _check_model(plan: EnginePlan) -> None:
    """Refuse what cannot run before anything is started."""
    from services.worker.engine.checkpoint.json_fields import ModelError  # noqa: PLC0415
    from services.worker.engine.checkpoint.model_families import read_config  # noqa: PLC0415

    try:
        config = read_config(plan.model)
        for world in plan.tp:
            config.check_split(world)
    except ModelError as error:
        fail(f"{error}.", exit_code=2)
    if plan.prompt + plan.tokens > config.context_length:
        fail(
            f"--prompt {plan.prompt} and --tokens {plan.tokens} are more than the model's context of "
            f"{config.context_length} tokens: ask for less.",
            exit_code=2,
        )
