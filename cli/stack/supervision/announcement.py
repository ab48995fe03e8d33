"""Says where a stack that is ready is reached, and what to try next."""

import os
import sys
from collections.abc import Sequence

from cli.console import called_as, out
from cli.keys.first_admin_key import admin_key_words
from cli.stack.fleet.entry import FoundModel, ModelEntry
from cli.stack.machine import Settled
from cli.stack.options import UpOptions
from cli.stack.sizing_text import count_words
from cli.stack.state import StackState, state_dir_words
from shared.address import redact


def announce(
    options: UpOptions, settled: Settled, state: StackState, closing: str = "", made_key: str = ""
) -> None:
    """Print where the stack is reached, and what to try next.

    Args:
        closing: The last line; empty: none more.
        made_key: The admin key that this start has made.
    """
    broker = redact(state.nats_url)  # terminals are recorded and shown, too; up.json has the password
    grpc = f"gRPC {state.grpc_address}, " if state.grpc_address else ""
    models = settled.models
    served = "; ".join(f"model {model.name}, {describe_groups(options, model.entry)}" for model in models)
    lines = [
        "",
        f"Ready: {state.url}  ({grpc}{served}, broker {broker}, logs in {options.state_dir / 'logs'})",
        "",
        *(example_line(state.url, model) for model in models),
        "",
        f"{_chat_words(options, models)}{'' if sys.stdout.isatty() else 'SIGTERM or '}Ctrl-C ends it.",
    ]
    if made_key:
        lines[-1:-1] = [admin_key_words(options.state_dir, made_key, shown=sys.stdout.isatty()), ""]
    lines = lines[:-1] if not in_foreground(state) else [*lines, *filter(None, [closing])]
    for line in lines:
        out.print(line, markup=False, soft_wrap=True)


def example_line(url: str, model: FoundModel) -> str:
    """Return a command that asks a model for an answer, or for a completion if it does not chat."""
    path, asked = "completions", '"max_tokens": 40, "prompt": "Once upon a time"'
    if model.chats:
        path, asked = "chat/completions", '"messages": [{"role": "user", "content": "Hello!"}]'
    body = f'{{"model": "{model.name}", "stream": true, {asked}}}'
    key = ' -H "Authorization: Bearer $API_KEY"' if os.environ.get("RYZ_API_KEYS") else ""
    return f"curl -N {url}/v1/{path} -H 'Content-Type: application/json'{key} -d '{body}'"


def _chat_words(options: UpOptions, models: Sequence[FoundModel]) -> str:
    silent = [model.name for model in models if not model.chats]
    if silent and len(silent) == len(models):
        return f"{', '.join(silent)} completes texts: without a chat template there is no chat. "
    return f"Or talk to it with `{called_as()} chat{state_dir_words(options.state_dir)}`. "


def describe_groups(options: UpOptions, entry: ModelEntry) -> str:
    """Return how many groups of which kind a model has, in words."""
    groups = count_words(entry.groups, "group")
    if entry.min_groups:
        groups = groups if entry.min_groups == entry.groups else f"{entry.min_groups} to {groups},"
    elif entry.load == "demand":
        groups = f"up to {groups} on demand,"
    if entry.remote:
        return f"{groups} in front of {redact(entry.remote)}"
    if options.engine == "null":
        return f"{groups} of the null engine"
    if options.engine == "vllm":
        return f"{groups} of vLLM"
    return f"{groups} of {count_words(entry.tensor_parallel, 'rank')}"


def in_foreground(state: StackState) -> bool:
    """Whether the stack runs in this process."""
    return state.pid == os.getpid()
