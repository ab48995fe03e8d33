"""`ryz bench guest`: options, stack and table of what the path costs a server of others."""

import tempfile
from contextlib import ExitStack
from pathlib import Path

from benchmarks.lib.machine import SERVING_PACKAGES
from benchmarks.stack_plans import GuestPlan
from cli.bench.own_stack import own_stack
from cli.bench.report import AsJson, Report, counting_bar, print_line, print_table, reporting
from cli.command_options import with_options
from cli.console import err
from cli.models.resolve import resolve_model

_NAME = "guest"


@with_options
def guest(plan: GuestPlan, *, as_json: AsJson = False) -> None:
    """Tokens a second and time to the first token of a server of others, alone and behind a group, in turns.

    The server runs already, such as llama-server or vLLM. A stack with one group in front of it is started,
    and taken down again.
    """
    from benchmarks.guest.guest import measure  # noqa: PLC0415 (keeps `ryz bench --help` quick)
    from services.worker.model_files.load_model import load_model  # noqa: PLC0415

    with (
        reporting("guest", show, as_json=as_json, packages=SERVING_PACKAGES) as report,
        ExitStack() as cleanup,
    ):
        err.print("starting a stack", style="dim")
        folder = Path(cleanup.enter_context(tempfile.TemporaryDirectory(prefix="ryz-bench-")))
        source = resolve_model(plan.tokenizer)
        tokenizer = load_model(source).tokenizer
        vocabulary = [one for one in range(tokenizer.vocab_size) if one not in tokenizer.special_ids]
        models = folder / "models.toml"
        models.write_text(
            f'[[models]]\nname = "{_NAME}"\nsource = "{source}"\nremote = "{plan.url}"\n'
            f'remote_model = "{plan.remote_model}"\n'
        )
        stack = cleanup.enter_context(own_stack({"--models": models, "--log-level": "warning"}))
        progress = cleanup.enter_context(counting_bar(len(plan.concurrency) * (plan.rounds + 1)))
        report.update(measure(plan, stack, vocabulary, progress))
        report.update(prompt_tokens=plan.prompt_tokens, tokens=plan.tokens, rounds=plan.rounds)


def show(report: Report) -> None:
    """Print the report as a table."""
    columns = {
        "at once": "{concurrency}",
        "tok/s alone": "{alone_tokens_per_s:,.1f}",
        "tok/s behind": "{behind_tokens_per_s:,.1f}",
        "share": "{share:.3f}",
        "first token alone ms": "{alone_ttft_p50_ms:,.1f}",
        "first token behind ms": "{behind_ttft_p50_ms:,.1f}",
        "more": "{more_ttft_ms:+,.1f}",
    }
    print_table("a server of others, alone and behind a group", report["rows"], columns)
    spent = ", ".join(f"{name} {used:.3f}" for name, used in report["cpu_ms_per_token"].items())
    print_line(f"CPU milliseconds a token at the highest number: {spent}")
    facts = report["machine"]
    print_line(f"{facts['cpu']}, {facts['usable_cores']} cores, commit {report['commit']}")
