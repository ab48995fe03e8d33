"""`ryz bench engine`: options, checks, progress and the tables of the engine benchmark."""

import asyncio
import json
import signal
import sys
from pathlib import Path
from typing import Annotated, Any, get_args

import typer

from cli.bench.bench_engine_view import show
from cli.bench.bench_options import choice, numbers
from cli.bench.bench_progress import counting_bar
from cli.console import err, fail


def engine(  # noqa: PLR0917 (typer takes options as arguments)
    model: Annotated[Path, typer.Option(help="Model directory in Hugging Face format.")],
    quantize: Annotated[str, typer.Option(help="none or int8; both with a comma between them.")] = "none",
    tp: Annotated[str, typer.Option(help="Ranks that compute together, one number after the other.")] = "1",
    threads: Annotated[
        int, typer.Option(min=0, max=1024, help="Threads of each rank; 0: cores / ranks.")
    ] = 0,
    batches: Annotated[str, typer.Option(help="Sequences at once, one number after the other.")] = "1,4,8,16",
    prompt: Annotated[int, typer.Option(min=1, help="Tokens of each prompt; they are random.")] = 128,
    tokens: Annotated[int, typer.Option(min=2, help="Tokens generated for each prompt.")] = 48,
    repeats: Annotated[int, typer.Option(min=1, max=100, help="Measured runs; the median counts.")] = 3,
    kernels: Annotated[str, typer.Option(help="auto, native or plain.")] = "auto",
    kv_dtype: Annotated[str, typer.Option(help="Type of the KV cache: auto, fp32 or fp16.")] = "auto",
    peer: Annotated[
        list[str] | None, typer.Option(help="Measure transformers or llama.cpp in turns; may be repeated.")
    ] = None,
    independent: Annotated[
        bool, typer.Option("--independent", help="For each tp above 1: ranks that work alone, side by side.")
    ] = False,
    http: Annotated[
        bool, typer.Option("--http", help="The same through a whole stack, in turns; needs the memory twice.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
) -> None:
    """Tokens a second of the whole engine (scheduler and ranks), and where a step's time goes.

    Greedy, past every end of sequence, with random prompts, so nothing comes from the prefix cache. Decoding
    is counted while all sequences of the batch decode. Peers compute the same weights on as many threads.
    """
    from benchmarks.engine.engine import BenchFailed, Plan, measure  # noqa: PLC0415 (keeps `ryz --help` quick)
    from benchmarks.lib.machine import ENGINE_PACKAGES, commit, machine  # noqa: PLC0415
    from services.worker.rank_protocol.rank_messages import Kernels, KVDtype, Quantize  # noqa: PLC0415

    plan = Plan(
        model=model,
        quantize=[choice("--quantize", part, get_args(Quantize)) for part in quantize.split(",")],
        tp=numbers("--tp", tp, 64),
        threads=threads,
        batches=numbers("--batches", batches, 512),
        prompt=prompt,
        tokens=tokens,
        repeats=repeats,
        kernels=choice("--kernels", kernels, get_args(Kernels)),
        kv_dtype=choice("--kv-dtype", kv_dtype, get_args(KVDtype)),
        peers=_peers(peer or []),
        independent=independent,
        http=http,
    )
    _check_model(plan)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # like Ctrl-C: what was started is ended
    facts = {"machine": machine(ENGINE_PACKAGES), "commit": commit()}
    try:
        with counting_bar(plan.num_steps()) as progress:
            report = {**asyncio.run(measure(plan, progress)), **facts}
    except BenchFailed as error:
        fail(f"The measurement failed: {error}.")
    if as_json:
        sys.stdout.write(json.dumps(report, indent=1) + "\n")
    else:
        show(report)
    for text in _remarks(report["rows"]):
        err.print(text, style="yellow", markup=False, soft_wrap=True)


def _remarks(rows: list[dict[str, Any]]) -> list[str]:
    """What a reader must know: peers that did not run, and signs that the machine was not ours alone."""
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


def _peers(names: list[str]) -> list[str]:
    from benchmarks.peers import PEERS, missing_packages  # noqa: PLC0415

    for name in names:
        choice("--peer", name, PEERS)
        if missing := missing_packages(name):
            fail(
                f"--peer {name} needs {' and '.join(missing)}, not installed here: "
                "`pip install 'ryzanstein[peers]'` brings them.",
                exit_code=2,
            )
    return list(dict.fromkeys(names))


def _check_model(plan: Any) -> None:
    """Refuses what cannot run before anything is started."""
    from services.worker.engine.checkpoint.model_config import ModelError, read_config  # noqa: PLC0415

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
