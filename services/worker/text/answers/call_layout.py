"""How calls of tools are laid out in text: what stands before, between and behind them.

The grammar of calls (`grammars/call_grammar.py`) allows this layout alone, and a call that is continued is
written in it. Forms whose arguments are no JSON text are only laid out here, not written.
"""

from collections.abc import Sequence
from typing import NamedTuple

from services.worker.text.answers.tool_format import CallSyntax
from shared.messages import ToolCall


class BlockTexts(NamedTuple):
    """The texts of a block of calls.

    Attributes:
        opens: Before the first call, of a block that stands alone; `line` follows it.
        line: Text behind the opening.
        between: Text between two calls.
        end: Text behind the last call.
    """

    opens: str
    line: str
    between: str
    end: str


class AnswerPiece(NamedTuple):
    """A piece of an answer.

    Attributes:
        is_markup: It belongs to the form of the answer, so control tokens in it are such tokens.
    """

    text: str
    is_markup: bool = False


def block_texts(syntax: CallSyntax) -> BlockTexts:
    """Returns the texts around the calls of a block."""
    opens, closes = "".join(syntax.opens[:1]), "".join(syntax.closes[:1])
    if syntax.enforced == "each":
        own_lines = (
            bool(opens) and (syntax.body == "json" or bool(syntax.items)) and syntax.body != "plain_keys"
        )
        line = "\n" if own_lines else ""
        between = f"{line}{closes}{line}{opens}{line}" if opens else "; "
        end = closes if syntax.body == "tagged" and not syntax.items else line + closes
    elif syntax.enforced == "list":
        lines = syntax.body == "python" and bool(opens)
        line, between = ("\n", "\n") if lines else ("[", ", ")
        end = f"\n{closes}" if lines else f"]{closes}"
    else:
        line, between, end = "", "" if syntax.items else opens, closes
    return BlockTexts(opens, line, between, end)


def json_call_texts(syntax: CallSyntax, name: str) -> tuple[str, str]:
    """Returns what stands before and behind the arguments of a call, where they are JSON text."""
    if syntax.enforced == "named":
        fence = "\n" if syntax.before_arguments else ""
        before = f"{syntax.items}{syntax.name_prefix}{name}{syntax.name_ends[0]}"
        before += "".join(part + fence for part in syntax.before_arguments)
        return before, fence + "".join(syntax.after_arguments)
    return f'{{"{syntax.name_keys[0]}": "{name}", "{syntax.argument_keys[0]}": ', "}"


def open_calls(syntax: CallSyntax, calls: Sequence[ToolCall]) -> list[AnswerPiece] | None:
    """Returns calls as a model writes them, up to the end of the last one's arguments.

    Args:
        calls: At least one call.

    Returns:
        The pieces; None if arguments are no JSON text in this syntax, so that they cannot be written as they
        were.
    """
    if not syntax.enforced or syntax.body not in ("json", "named"):
        return None
    block = block_texts(syntax)
    pieces = [AnswerPiece(block.opens + block.line, is_markup=True)]
    for slot, call in enumerate(calls):
        before, after = json_call_texts(syntax, call.name)
        pieces += [AnswerPiece(before, is_markup=True), AnswerPiece(call.arguments)]
        if slot + 1 < len(calls):
            pieces.append(AnswerPiece(after + block.between, is_markup=True))
    return pieces
