"""`ryz chat`: a conversation in the terminal, one HTTP request per turn.

Only the new message is sent; the session id lets the stack add what was said before.
"""

import shlex
import sys
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Annotated

import typer

from cli.chat.served_models import ListedModel, by_readiness
from cli.chat.terminal import MAX_TOKENS, TerminalChat, note
from cli.command_groups import ApiKey, GatewayState, GatewayUrl
from cli.command_options import with_options
from cli.stack.state import state_dir_words


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatOptions:
    """The options of `ryz chat`."""

    url: GatewayUrl = ""
    session: Annotated[str, typer.Option(help="Go on with this session.", show_default=False)] = ""
    model: Annotated[str, typer.Option(help="The model.  [default: one that is ready]")] = ""
    system: Annotated[str, typer.Option(help="The system prompt.", show_default=False)] = ""
    temperature: Annotated[
        float | None, typer.Option(min=0, max=2, help="0 takes the likeliest token.  [default: the model's]")
    ] = None
    max_tokens: Annotated[
        int | None, typer.Option(min=1, help=f"The longest answer, in tokens.  [default: {MAX_TOKENS}]")
    ] = None
    once: Annotated[str, typer.Option(help="Ask this, print the answer, leave.", show_default=False)] = ""
    api_key: ApiKey = ""
    state_dir: GatewayState = None

    @property
    def sampling(self) -> dict[str, float]:
        """The sampling parameters that were given."""
        given = {"temperature": self.temperature, "max_tokens": self.max_tokens}
        return {name: value for name, value in given.items() if value is not None}


@with_options
def chat(options: ChatOptions) -> None:
    """Talk to a model. Piped input is one question; its answer is all that is printed."""
    from cli.console import fail  # noqa: PLC0415
    from cli.http_api import ChatApi, find_url  # noqa: PLC0415 (keeps `ryz --help` quick)

    question = options.once or ("" if sys.stdin.isatty() else sys.stdin.read().strip())
    if not question and not sys.stdin.isatty():
        fail('There is nothing to ask: the input is empty. Pipe a question in, or use `--once "..."`.')
    url = find_url(options.url, options.state_dir, options.api_key)
    with closing(ChatApi(url, options.api_key)) as api:
        model, *others = [ListedModel(options.model)] if options.model else by_readiness(api.models())
        again = gateway_words(options) + (f" --model {shlex.quote(model.name)}" if others else "")
        talk = TerminalChat(
            api, model.name, options.session, options.system, options.sampling, options_again=again
        )
        if model.phase != "ready":
            note(f"{model.name} is {model.phase}: the first answer waits until it is loaded.")
        if question:
            if others:
                note(f"{model.name} is asked; `--model NAME` asks another: {words_of(others)}")
            talk.ask(question)
        else:
            talk.converse([other.words for other in others])


def words_of(models: Sequence[ListedModel]) -> str:
    """Return models in a row, with the states of those that do not answer at once."""
    return ", ".join(model.words for model in models)


def gateway_words(options: ChatOptions) -> str:
    """Return the option that reaches the same gateway, behind a space; empty if none was given."""
    if options.url:
        return f" --url {shlex.quote(options.url)}"
    return state_dir_words(options.state_dir) if options.state_dir is not None else ""
