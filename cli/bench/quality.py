"""`ryz bench quality`: options, checks and table of the comparison of precisions with fp32."""

from dataclasses import replace
from pathlib import Path

from benchmarks.engine_plans import QualityPlan
from cli.bench.inputs import require_context, require_model, require_peers, with_model
from cli.bench.report import AsJson, Report, counting_bar, print_table, reporting
from cli.command_options import with_options
from cli.console import fail
from cli.models.resolve import resolve_model


@with_options
def quality(plan: QualityPlan, *, as_json: AsJson = False) -> None:
    """How far quantized weights move the next token from fp32: perplexity, KL divergence, top-1 agreement.

    At every position of a text that ships with Python, and of greedy answers to fixed questions. KL is in
    nats.
    """
    from benchmarks.quality.quality import measure, num_steps  # noqa: PLC0415 (keeps `--help` quick)

    plan = with_model(plan)
    if plan.reference is not None:
        reference = resolve_model(plan.reference)
        require_same_words(plan.model, reference)
        plan = replace(plan, reference=reference)
    require_peers(plan.peers, plan.peer_envs, logits=True)
    require_context(require_model(plan.model), f"windows of --window {plan.window}", plan.window)
    with reporting("quality", _show, as_json=as_json) as report, counting_bar(num_steps(plan)) as progress:
        report.update(measure(plan, progress))


def require_same_words(model: Path, reference: Path) -> None:
    """Refuse a reference whose logits are of another size."""
    sizes = [require_model(one).vocab_size for one in (model, reference)]
    if sizes[0] != sizes[1]:
        fail(
            f"--reference {reference} has {sizes[1]} words, {model} has {sizes[0]}: name the model that it "
            "was made of.",
            exit_code=2,
        )


def _show(report: Report) -> None:
    named = [
        (name, figures)
        for row in report["rows"]
        for name, figures in {
            row["precision"]: row,
            **{f"{peer} {kind}": one for peer, kinds in row["peers"].items() for kind, one in kinds.items()},
        }.items()
    ]
    rows = [
        {"name": name, "text": text, **figures}
        for name, both in dict(named).items()
        for text, figures in (("text", both), ("chats", both.get("chats")))
        if figures
    ]
    columns = {
        "": "{name}", "on": "{text}", "places": "{places:,}", "perplexity": "{perplexity:.3f}",
        "change": "{perplexity_change:+.2%}", "KL": "{kl:.5f}", "top-1": "{top1:.1%}",
    }  # fmt: skip
    print_table(f"{report['rows'][0]['model']} against fp32, windows of {report['window']}", rows, columns)
