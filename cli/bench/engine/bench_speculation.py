"""`ryz bench speculation`: options, checks and table of answers with and without draft tokens."""

import asyncio
import logging
import sys
from dataclasses import replace

import structlog

from benchmarks.engine_plans import SpeculationPlan
from cli.bench.inputs import require_context, require_model, with_model
from cli.bench.report import AsJson, Report, counting_bar, print_line, print_table, reporting
from cli.command_options import with_options
from cli.models.resolve import resolve_model

_PROMPT = 512  # tokens, more than the prompts have


@with_options
def speculation(plan: SpeculationPlan, *, as_json: AsJson = False) -> None:
    """What guesses of the next tokens save: a text that is copied, and a free one at temperature 1.

    With and without guesses in turns, on one engine; with a draft model also with its guesses. It fails if a
    token differs.
    """
    from benchmarks.engine.speculation_load import measure  # noqa: PLC0415 (keeps `ryz bench --help` quick)

    plan = with_model(plan)
    structlog.configure(  # a report on stdout may be JSON
        wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
    if plan.draft_model is not None:
        draft_model = resolve_model(plan.draft_model)
        require_model(draft_model)
        plan = replace(plan, draft_model=draft_model)
    config = require_model(plan.model, [plan.tensor_parallel])
    require_context(config, f"--tokens {plan.tokens} after a prompt", plan.tokens + _PROMPT)
    steps = 1 + bool(plan.draft_model) + 2 * len(plan.batches) * (plan.repeats + 1)
    with reporting("speculation", _show, as_json=as_json) as report, counting_bar(steps) as progress:
        report.update(asyncio.run(measure(plan, progress)))


def _show(report: Report) -> None:
    columns = {
        "task": "{task}", "batch": "{batch}", "guesses by": "{guesses}",
        "tok/s without": "{plain_tokens_per_s:,.0f}",
        "with": "{tokens_per_s:,.0f}", "ratio": "{ratio:.2f}", "least": "{least_ratio:.2f}",
        "tok/step": "{tokens_per_step:.2f}", "guesses": "{draft_tokens:,}", "right": "{accepted_tokens:,}",
        "by the model": "{model_draft_tokens:,}", "these right": "{model_accepted_tokens:,}",
    }  # fmt: skip
    print_table(
        f"{report['model']} {report['precision']}, tp {report['tp']}, {report['tokens']} tokens",
        report["rows"],
        columns,
    )
    print_line(f"at most {report['draft_tokens']} guesses a step; all tokens equal with and without")
