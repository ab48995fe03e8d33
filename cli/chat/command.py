"""`ryz chat`: a conversation in the terminal, one HTTP request per turn.

Only the new message is sent; the session id lets the stack add what was said before.
"""

import os
import secrets
import shlex
import sys
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.chat.served_models import ListedModel, by_readiness
from cli.command_groups import ApiKey, GatewayState, GatewayUrl
from cli.command_options import with_options
from cli.stack.state import state_dir_words
from cli.visible import visible

if TYPE_CHECKING:
    from cli.http_api import ChatApi

HELP = (
    "/new starts a new session, /session shows its id, /quit leaves; end a line with \\ to go on in the next."
)
MORE = '"""'
MAX_TOKENS = 1024  # of an answer: small models may go on for ever


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


class TerminalChat:
    """A session with a model. Text goes to stdout as it arrives.

    Args:
        options_again: Those that go on with the session at the same gateway and model, behind a space.
    """

    def __init__(
        self,
        api: "ChatApi",
        model: str,
        session_id: str,
        system: str,
        sampling: dict[str, float],
        *,
        options_again: str = "",
    ) -> None:
        self._api = api
        self._model = model
        self._system = system
        self._sampling = sampling
        self._options_again = options_again
        self.session_id = session_id or new_session_id()
        self._began = False  # after a turn the session must exist for the next one

    def ask(self, text: str) -> None:
        """Send one message and print the answer while it comes.

        An answer has at most `MAX_TOKENS` where nothing was said, or what is left of the context.
        """
        from cli.http_api import ApiError  # noqa: PLC0415

        messages = [{"role": "system", "content": self._system}] if self._system else []
        body: dict[str, Any] = {
            "model": self._model,
            "messages": [*messages, {"role": "user", "content": text}],
            **self._sampling,
        }
        if self._began:
            body["session_must_exist"] = True
        if "max_tokens" in body:
            self._answer(body)
            return
        try:
            self._answer({**body, "max_tokens": MAX_TOKENS})
        except ApiError as error:
            if error.code != "context_length_exceeded":
                raise
            self._answer(body)

    def _answer(self, body: dict[str, Any]) -> None:
        from cli.chat.answers import StreamPosition  # noqa: PLC0415 (keeps `ryz --help` quick)

        shown = visible if sys.stdout.isatty() else str  # piped text stays as it is
        position = StreamPosition()
        with closing(self._api.stream(body, self.session_id, position)) as pieces:
            for piece in pieces:
                sys.stdout.write(shown(piece))
                sys.stdout.flush()
        self._began = True
        sys.stdout.write("\n")
        sys.stdout.flush()
        if position.cut and "max_tokens" not in self._sampling:
            limit = f"{MAX_TOKENS} tokens; `--max-tokens N` allows more"
            note(f"(The answer was cut at {limit if 'max_tokens' in body else 'the end of the context'}.)")

    def converse(self, others: Sequence[str] = ()) -> None:
        """Ask and answer until /quit, Ctrl-D, or Ctrl-C twice at the prompt.

        Args:
            others: Models that could have been chosen, in words.
        """
        import readline  # noqa: F401, PLC0415 (gives `input` history and editing)

        from cli.console import CommandError, called_as, err  # noqa: PLC0415

        err.print(f"{self._model} at {self._api.url}, session {self.session_id}", style="dim", markup=False)
        if others:
            names = ", ".join(map(visible, others))
            err.print(f"Also served: {names} (`--model NAME`)", style="dim", markup=False)
        err.print(HELP, style="dim", markup=False)
        interrupted = False
        while True:
            try:
                text = read_message()
                if text is None or (text.startswith("/") and self._command(text)):
                    break
                interrupted = False
                if text.strip() and not text.startswith("/"):
                    self.ask(text)
            except KeyboardInterrupt:
                if interrupted:
                    sys.stdout.write("\n")
                    break
                interrupted = True
                err.print("\n(Ctrl-C again leaves)", style="dim", markup=False)
            except CommandError as error:
                err.print(str(error), style="red", markup=False, soft_wrap=True)
        again = f"{called_as()} chat{self._options_again} --session {self.session_id}"
        err.print(f"To go on with this session: {again}", style="dim", markup=False, soft_wrap=True)

    def _command(self, text: str) -> bool:
        """Run a command; True: leave."""
        from cli.console import err  # noqa: PLC0415

        word = text.split(maxsplit=1)[0]
        if word in {"/quit", "/exit"}:
            return True
        if word == "/new":
            self.session_id, self._began = new_session_id(), False
        if word in {"/new", "/session"}:
            err.print(f"session {self.session_id}", style="dim", markup=False)
        else:
            err.print(HELP, style="dim", markup=False)
        return False


def note(text: str) -> None:
    """Print a remark for a person, which is no part of the answer."""
    from cli.console import err  # noqa: PLC0415 (keeps `ryz --help` quick)

    err.print(text, style="dim", markup=False, soft_wrap=True)


def words_of(models: Sequence[ListedModel]) -> str:
    """Return models in a row, with the states of those that do not answer at once."""
    return ", ".join(model.words for model in models)


def gateway_words(options: ChatOptions) -> str:
    """Return the option that reaches the same gateway, behind a space; empty if none was given."""
    if options.url:
        return f" --url {shlex.quote(options.url)}"
    return state_dir_words(options.state_dir) if options.state_dir is not None else ""


def new_session_id() -> str:
    """Return a new, unique session id."""
    return f"chat-{secrets.token_hex(6)}"


def read_message(prompt: str = "> ", more: str = ". ") -> str | None:
    r"""A message from the terminal, of several lines if they end in `\` or stand between triple quotes.

    None: the person left. Ctrl-C is the caller's.
    """
    try:
        line = input(prompt)
        if line.strip() == MORE:
            lines = []
            while (line := input(more)).strip() != MORE:
                lines.append(line)
            return os.linesep.join(lines)
        lines = []
        while line.endswith("\\"):
            lines.append(line[:-1])
            line = input(more)
        return os.linesep.join([*lines, line])
    except EOFError:
        sys.stdout.write("\n")
        return None
