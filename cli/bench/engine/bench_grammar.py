"""`ryz bench grammar`: options, checks and table of decoding under grammars."""

import asyncio

from benchmarks.engine_plans import GrammarPlan
from cli.bench.inputs import require_context, require_model, with_model
from cli.bench.report import AsJson, Report, counting_bar, print_line, print_table, reporting
from cli.command_options import with_options


@with_options
def grammar(plan: GrammarPlan, *, as_json: AsJson = False) -> None:
    """What masks of grammars cost, and what forced tokens save: JSON schemas beside free decoding.

    Greedy, with random prompts, all kinds in turns. `text` has hardly a forced token; most of `records` are
    forced. `masks wait` is rank 0 waiting for a step's masks, `masks made` the leader's time for them.
    """
    from benchmarks.grammar.grammar import measure  # noqa: PLC0415 (keeps `ryz bench --help` quick)

    plan = with_model(plan)
    config = require_model(plan.model, [plan.tensor_parallel])
    require_context(config, f"--prompt {plan.prompt} and --tokens {plan.tokens}", plan.prompt + plan.tokens)
    with reporting("grammar", _show, as_json=as_json) as report, counting_bar(plan.num_steps()) as progress:
        report.update(asyncio.run(measure(plan, progress)))


def _show(report: Report) -> None:
    columns = {
        "": "{kind}", "tok/s": "{tokens_per_s:,.0f}", "tok/step": "{tokens_per_step:.1f}",
        "step ms": "{step_ms:.2f}", "sampling ms": "{sampling_ms:.2f}", "masks wait": "{masks_wait_ms:.2f}",
        "masks made": "{masks_made_ms:.2f}",
    }  # fmt: skip
    print_table(
        f"{report['model']} {report['precision']}, tp {report['tp']}, batch {report['batch']}",
        report["rows"],
        columns,
    )
    print_line(
        f"under a grammar {report['text_of_free']:.1%} of free decoding; "
        f"forced tokens {report['forced_of_one_by_one']:.2f} times one by one"
    )
