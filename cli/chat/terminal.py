"""The terminal of `ryz chat`: prompts, answers as they come, and the commands of a conversation.

The session holds what was said. A command that goes back, or to another model, begins another session with
that text.
"""

import json
import os
import secrets
import shlex
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cli.visible import visible

if TYPE_CHECKING:
    from cli.chat.answers import StreamPosition
    from cli.http_api import ChatApi

HELP = (
    "/new starts a new session, /regen answers the last message again, /system TEXT, /model NAME, "
    "/save FILE, /session shows its id, /quit leaves; end a line with \\ to go on in the next."
)
MORE = '"""'
MAX_TOKENS = 1024  # of an answer: small models may go on for ever
_TYPED, _PLAIN = "\x1b[1;36m", "\x1b[0m"  # what the user types is bold and coloured, answers are plain
_UNSEEN = "\001{}\002"  # readline counts what is between as no columns

Message = dict[str, str]


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
        self._said: list[Message] = []  # before, in another session; sent with the next message
        self._is_measured = False

    def ask(self, text: str) -> None:
        """Send one message and print the answer while it comes.

        An answer has at most `MAX_TOKENS` where nothing was said, or what is left of the context.
        """
        from cli.http_api import ApiError  # noqa: PLC0415

        system = [{"role": "system", "content": self._system}] if self._system else []
        body: dict[str, Any] = {
            "model": self._model,
            "messages": [*system, *self._said, {"role": "user", "content": text}],
            **self._sampling,
        }
        if self._began:
            body["session_must_exist"] = True
        if self._is_measured:
            body["stream_options"] = {"include_usage": True}
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
        position, began, first = StreamPosition(), time.monotonic(), 0.0
        with closing(self._api.stream(body, self.session_id, position)) as pieces:
            for piece in pieces:
                first = first or time.monotonic()
                sys.stdout.write(shown(piece))
                sys.stdout.flush()
        self._began, self._said = True, []
        sys.stdout.write("\n")
        sys.stdout.flush()
        if position.cut and "max_tokens" not in self._sampling:
            limit = f"{MAX_TOKENS} tokens; `--max-tokens N` allows more"
            note(f"(The answer was cut at {limit if 'max_tokens' in body else 'the end of the context'}.)")
        if self._is_measured and first:
            note(speed_words(position, first - began, time.monotonic() - first))

    def converse(self, others: Sequence[str] = ()) -> None:
        """Ask and answer until /quit, Ctrl-D, or Ctrl-C twice at the prompt.

        Args:
            others: Models that could have been chosen, in words.
        """
        import readline  # noqa: F401, PLC0415 (gives `input` history and editing)

        from cli.console import CommandError, called_as, err  # noqa: PLC0415

        self._is_measured = True
        note(f"{self._model} at {self._api.url}, session {self.session_id}")
        if others:
            note(f"Also served: {', '.join(map(visible, others))} (`--model NAME`)")
        note(HELP)
        interrupted = False
        while True:
            try:
                text = read_message()
                if text is None or (text.startswith("/") and self.run_command(text)):
                    break
                interrupted = False
                if text.strip() and not text.startswith("/"):
                    self.ask(text)
            except KeyboardInterrupt:
                if interrupted:
                    sys.stdout.write("\n")
                    break
                interrupted = True
                note("\n(Ctrl-C again leaves)")
            except CommandError as error:
                err.print(str(error), style="red", markup=False, soft_wrap=True)
        note(
            f"To go on with this session: {called_as()} chat{self._options_again} --session {self.session_id}"
        )

    def run_command(self, text: str) -> bool:
        """Run a command; True: leave."""
        word, _, rest = text.partition(" ")
        if word in {"/quit", "/exit"}:
            return True
        commands: dict[str, Callable[[str], None]] = {
            "/help": lambda _: note(HELP),
            "/new": lambda _: self._begin_again([]),
            "/session": lambda _: note(f"session {self.session_id}"),
            "/system": self._set_system,
            "/regen": lambda _: self._answer_again(),
            "/model": self._change_model,
            "/save": self._save,
        }
        command = commands.get(word)
        if command is None:
            note(f"There is no command {word}. {HELP}")
        else:
            command(rest.strip())
        return False

    def _begin_again(self, said: list[Message]) -> None:
        """Go on in a new session, which begins with what was said."""
        self.session_id, self._began = new_session_id(), False
        if said and said[0]["role"] == "system":
            self._system, said = said[0]["content"], said[1:]
        self._said = said
        note(f"session {self.session_id}")

    def _set_system(self, text: str) -> None:
        if not text:
            note(f"The system prompt: {self._system}" if self._system else "There is no system prompt.")
            return
        self._system = text
        self._begin_again([])

    def _answer_again(self) -> None:
        from cli.console import fail  # noqa: PLC0415

        said = self._conversation()
        last = next((n for n in reversed(range(len(said))) if said[n]["role"] == "user"), None)
        if last is None:
            fail("There is no message to answer again.")
        self._begin_again(said[:last])
        self.ask(said[last]["content"])

    def _change_model(self, name: str) -> None:
        from cli.console import fail  # noqa: PLC0415

        listed = {model.name: model for model in self._api.models()}
        if not name:
            others = ", ".join(model.words for model in listed.values() if model.name != self._model)
            note(f"{self._model}; also served: {others}" if others else f"{self._model}; no other is served")
            return
        if name not in listed:
            fail(f"No model {name} is served; there are {', '.join(listed)}.")
        said = self._conversation()
        self._model = name
        self._options_again = f"{self._options_again.partition(' --model ')[0]} --model {shlex.quote(name)}"
        self._begin_again(said)
        note(f"{name} answers from now on{', and knows the conversation' if said else ''}.")

    def _save(self, name: str) -> None:
        """Write the conversation: messages for the API into a `.json` file, else Markdown."""
        from cli.console import fail  # noqa: PLC0415

        path, said = Path(name or f"{self.session_id}.md").expanduser(), self._conversation()
        if not said:
            fail("There is nothing to save yet.")
        if path.suffix == ".json":
            text = json.dumps({"model": self._model, "messages": said}, indent=1, ensure_ascii=False) + "\n"
        else:
            text = "".join(f"**{one['role']}**\n\n{one['content']}\n\n" for one in said)
        try:
            with path.open("x", encoding="utf-8") as file:
                file.write(text)
        except FileExistsError:
            fail(f"There is {path} already; name another file.")
        except OSError as error:
            fail(f"{path} cannot be written: {error.strerror}.")
        note(f"saved in {path}")

    def _conversation(self) -> list[Message]:
        """Return what was said, as the session has it, or as it will be sent with the next message."""
        return self._api.conversation(self.session_id) if not self._said else self._said


def speed_words(position: "StreamPosition", first_s: float, rest_s: float) -> str:
    """Return how fast an answer came.

    Args:
        first_s: Seconds until its first text.
        rest_s: Seconds from then to its end.
    """
    tokens = position.tokens
    rate = f", {(tokens - 1) / rest_s:,.1f} a second" if tokens > 1 and rest_s > 0 else ""
    return f"({tokens:,} tokens{rate}, the first after {first_s:.2f} s)"


def note(text: str) -> None:
    """Print a remark for a person, which is no part of the answer."""
    from cli.console import err  # noqa: PLC0415 (keeps `ryz --help` quick)

    err.print(text, style="dim", markup=False, soft_wrap=True)


def new_session_id() -> str:
    """Return a new, unique session id."""
    return f"chat-{secrets.token_hex(6)}"


def read_message(prompt: str = "> ", more: str = ". ") -> str | None:
    r"""A message from the terminal, of several lines if they end in `\` or stand between triple quotes.

    None: the person left. Ctrl-C is the caller's.
    """
    coloured = sys.stdout.isatty() and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"
    start = _UNSEEN.format(_TYPED) if coloured else ""
    try:
        line = input(start + prompt)
        if line.strip() == MORE:
            lines = []
            while (line := input(start + more)).strip() != MORE:
                lines.append(line)
            return os.linesep.join(lines)
        lines = []
        while line.endswith("\\"):
            lines.append(line[:-1])
            line = input(start + more)
        return os.linesep.join([*lines, line])
    except EOFError:
        sys.stdout.write("\n")
        return None
    finally:
        if coloured:
            sys.stdout.write(_PLAIN)
            sys.stdout.flush()
