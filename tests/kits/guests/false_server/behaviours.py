"""All that the false server can do, by name, and what a client must make of it."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Final

from tests.kits.guests.false_server import bad_answers, bad_streams, unusual_streams
from tests.kits.guests.false_server.http_wire import Answer
from tests.kits.guests.false_server.scripts import Script, Style

Act = Callable[[Answer, Script], Awaitable[None]]
_ALL: Final[frozenset[Style]] = frozenset({"vllm", "llama.cpp", "text"})
_COUNTED: Final[frozenset[Style]] = frozenset({"vllm", "llama.cpp"})  # each event has a count
_CHOICES: Final[frozenset[Style]] = frozenset({"vllm", "text"})
_TEXT: Final[frozenset[Style]] = frozenset({"text"})
_NATIVE: Final[frozenset[Style]] = frozenset({"llama.cpp"})


@dataclass(frozen=True, slots=True)
class Behaviour:
    """One behaviour.

    Attributes:
        whole: The answer is whole; otherwise there must be one error.
        styles: Of the servers that can do it.
    """

    act: Act
    whole: bool
    styles: frozenset[Style]


def _table(acts: list[Act], *, whole: bool, styles: frozenset[Style] = _ALL) -> dict[str, Behaviour]:
    return {act.__name__: Behaviour(act, whole, styles) for act in acts}  # type: ignore[attr-defined]


_UNUSUAL, _STREAMS, _ANSWERS = unusual_streams, bad_streams, bad_answers
BEHAVIOURS: Final[Mapping[str, Behaviour]] = {
    **_table(
        [
            _UNUSUAL.plain,
            _UNUSUAL.slow,
            _UNUSUAL.one_write,
            _UNUSUAL.split_bytes,
            _UNUSUAL.split_chunks,
            _UNUSUAL.closed_at_end,
            _UNUSUAL.keep_alives,
            _UNUSUAL.crlf,
            _UNUSUAL.cr_only,
            _UNUSUAL.multi_line_data,
            _UNUSUAL.other_fields,
            _UNUSUAL.no_space,
            _UNUSUAL.no_done,
            _UNUSUAL.no_last_line,
            _UNUSUAL.escaped,
            _UNUSUAL.empty_events,
            _UNUSUAL.more_behind_the_end,
            _UNUSUAL.early_hints,
            _UNUSUAL.endless_text,
        ],
        whole=True,
    ),
    **_table([_UNUSUAL.split_pairs, _UNUSUAL.joined], whole=True, styles=_TEXT),
    **_table(
        [
            _STREAMS.empty,
            _STREAMS.done_only,
            _STREAMS.done_early,
            _STREAMS.ends_early,
            _STREAMS.cut,
            _STREAMS.cut_in_event,
            _STREAMS.cut_in_character,
            _STREAMS.closed_early,
            _STREAMS.reset,
            _STREAMS.stall,
            _STREAMS.stall_with_keep_alives,
            _STREAMS.stall_with_events,
            _STREAMS.error_event,
            _STREAMS.named_error,
            _STREAMS.error_field,
            _STREAMS.broken_json,
            _STREAMS.other_json,
            _STREAMS.chat_event,
            _STREAMS.empty_object,
            _STREAMS.bad_utf8,
            _STREAMS.unknown_end,
            _STREAMS.too_large,
            _ANSWERS.status_400,
            _ANSWERS.status_401,
            _ANSWERS.status_404,
            _ANSWERS.status_422,
            _ANSWERS.status_429,
            _ANSWERS.status_500,
            _ANSWERS.status_503,
            _ANSWERS.redirect,
            _ANSWERS.redirect_here,
            _ANSWERS.stalled_refusal,
            _ANSWERS.html,
            _ANSWERS.whole_json,
            _ANSWERS.error_in_200,
            _ANSWERS.no_content_type,
            _ANSWERS.no_content,
            _ANSWERS.compressed,
            _ANSWERS.no_http,
            _ANSWERS.huge_head,
            _ANSWERS.bad_chunks,
            _ANSWERS.no_answer,
            _ANSWERS.silence,
            _ANSWERS.cut_head,
        ],
        whole=False,
    ),
    **_table([_STREAMS.other_choice], whole=False, styles=_CHOICES),
    **_table([_STREAMS.cut_prompt], whole=False, styles=_NATIVE),
    **_table(
        [_STREAMS.doubled, _STREAMS.lost, _STREAMS.unknown_token, _STREAMS.other_prompt],
        whole=False,
        styles=_COUNTED,
    ),
}
