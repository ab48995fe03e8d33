"""`ryz bench`: its commands. How each one measures is in `benchmarks/`."""

import typer

from cli.bench.adapters.adapter_pool import adapter_pool
from cli.bench.adapters.bench_adapters import adapters
from cli.bench.batch import batch
from cli.bench.bench_kv import kv
from cli.bench.collectives import collectives
from cli.bench.compare import compare
from cli.bench.context import context
from cli.bench.engine.bench_closed_loop import closed_loop
from cli.bench.engine.bench_engine import engine
from cli.bench.engine.bench_finetune import finetune
from cli.bench.engine.bench_grammar import grammar
from cli.bench.engine.bench_mixed import mixed
from cli.bench.engine.bench_speculation import speculation
from cli.bench.failover import failover
from cli.bench.model import make_model
from cli.bench.overflow import overflow
from cli.bench.quality import quality
from cli.bench.routing import routing
from cli.bench.serving.bench_guest import guest
from cli.bench.serving.bench_serving import serving
from cli.bench.serving.bench_tenants import tenants
from cli.bench.sessions import sessions
from cli.bench.soak.bench_soak import soak
from cli.bench.waking import waking

app = typer.Typer(
    no_args_is_help=True,
    help="Measure the serving path, the engine and its parts; compare results.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
COMMANDS = (
    engine,
    grammar,
    mixed,
    closed_loop,
    adapters,
    adapter_pool,
    tenants,
    speculation,
    failover,
    overflow,
    routing,
    sessions,
    kv,
    context,
    collectives,
    make_model,
    compare,
    serving,
    batch,
    quality,
    waking,
    soak,
    finetune,
    guest,
)
for command in COMMANDS:
    app.command(command.__name__.replace("_", "-"))(command)
