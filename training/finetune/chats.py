"""Reads chats from JSON Lines, in OpenAI's form (`messages`) or ShareGPT's (`conversations`).

Every line is checked before anything is trained. Which tokens a chat has is decided in `rendering.py`.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shared.messages import ChatMessage
from training.finetune.errors import BadChats, FinetuneError

MOST_BYTES = 2**31  # of a file
MOST_LINE_BYTES = 2**24
_MOST_SHOWN = 5
_ROLES = ("system", "developer", "user", "assistant")
_SHAREGPT = {
    "system": "system",
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "assistant": "assistant",
}


@dataclass(frozen=True, slots=True)
class Chat:
    """A chat of a file.

    Attributes:
        line: Its line, counted from 1.
        trained: Indexes of the assistant's messages that are learned: those without `"weight": 0`.
    """

    line: int
    messages: tuple[ChatMessage, ...]
    trained: frozenset[int]


def read_chats(path: Path) -> tuple[list[Chat], str]:
    """Read a file of chats. Empty lines are passed over.

    Returns:
        The chats, and the SHA-256 of the file.

    Raises:
        FinetuneError: The file cannot be read or is empty.
        BadChats: Lines are no chats.
    """
    chats, problems, hashed = list[Chat](), list[str](), hashlib.sha256()
    try:
        if path.stat().st_size > MOST_BYTES:
            raise FinetuneError(f"{path} is larger than {MOST_BYTES >> 30} GiB; train on a part of it")
        with path.open("rb") as file:
            for number, line in enumerate(iter(lambda: file.readline(MOST_LINE_BYTES + 1), b""), 1):
                if len(line) > MOST_LINE_BYTES:  # the rest of it would be read as further lines
                    raise BadChats(
                        f"{path}:{number}: longer than {MOST_LINE_BYTES >> 20} MiB; split the chat"
                    )
                hashed.update(line)
                if not line.strip():
                    continue
                try:
                    chats.append(parse_chat(line, number))
                except ValueError as error:
                    problems.append(f"{path}:{number}: {error}")
    except OSError as error:
        raise FinetuneError(f"{path} cannot be read: {error.strerror or error}; check `--data`") from error
    if problems:
        more = len(problems) - _MOST_SHOWN
        rest = [f"and {more} more lines"] if more > 0 else []
        raise BadChats("\n".join([*problems[:_MOST_SHOWN], *rest]))
    if not chats:
        raise FinetuneError(f"{path} has no chats; give JSON Lines, one chat on each")
    return chats, hashed.hexdigest()


def parse_chat(line: bytes, number: int) -> Chat:
    """Read one line.

    Raises:
        ValueError: It is no chat; the text says what is wrong.
    """
    try:
        chat = json.loads(line.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise ValueError(f"no UTF-8 at byte {error.start + 1}") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"no JSON: {error.msg} at column {error.colno}") from None
    except RecursionError:
        raise ValueError("no chat: nested too deeply") from None
    if not isinstance(chat, dict):
        raise ValueError('no JSON object; a chat is {"messages": [...]} or {"conversations": [...]}')
    forms = [name for name in ("messages", "conversations") if name in chat]
    if len(forms) != 1:
        raise ValueError('a chat has either "messages" (OpenAI) or "conversations" (ShareGPT)')
    if chat.get("tools") or chat.get("functions"):
        raise ValueError('"tools" cannot be trained; remove them and the calls')
    turns = chat[forms[0]]
    if not isinstance(turns, list) or not turns:
        raise ValueError(f'"{forms[0]}" is no list of messages')
    read = _openai if forms == ["messages"] else _sharegpt
    messages, trained = [], set[int]()
    for index, turn in enumerate(turns):
        where = f"{forms[0]}[{index}]"
        if not isinstance(turn, dict):
            raise ValueError(f"{where} is no JSON object")
        role, content, weight = read(turn, where)
        messages.append(ChatMessage(role=role, content=content))  # type: ignore[arg-type]
        if role == "assistant" and weight:
            trained.add(index)
    _check_order([message.role for message in messages], forms[0])
    if not trained:
        raise ValueError("no assistant's message to learn")
    return Chat(number, tuple(messages), frozenset(trained))


def _openai(turn: Mapping[str, Any], where: str) -> tuple[str, str, bool]:
    role = turn.get("role")
    if role not in _ROLES:
        raise ValueError(f"{where}.role is {_shown(role)}; it must be one of {', '.join(_ROLES)}")
    for name in ("tool_calls", "function_call"):
        if turn.get(name):
            raise ValueError(f"{where}.{name} cannot be trained; remove the calls")
    weight = turn.get("weight", 1)
    if weight not in (0, 1):
        raise ValueError(f"{where}.weight is {_shown(weight)}; it must be 0 or 1")
    return str(role), _text(turn.get("content"), f"{where}.content", role == "assistant"), bool(weight)


def _sharegpt(turn: Mapping[str, Any], where: str) -> tuple[str, str, bool]:
    sender = turn.get("from")
    role = _SHAREGPT.get(sender) if isinstance(sender, str) else None
    if role is None:
        raise ValueError(f"{where}.from is {_shown(sender)}; it must be one of {', '.join(_SHAREGPT)}")
    return role, _text(turn.get("value"), f"{where}.value", role == "assistant"), True


def _text(content: object, where: str, needed: bool) -> str:
    if isinstance(content, list):
        parts = [part.get("text") if isinstance(part, dict) and part.get("type") == "text" else None
                 for part in content]  # fmt: skip
        if not all(isinstance(part, str) for part in parts):
            raise ValueError(f"{where} has parts that are no text")
        content = "".join(str(part) for part in parts)
    if not isinstance(content, str):
        raise ValueError(f"{where} is no text")
    try:
        content.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{where} has half a surrogate pair, which is no text") from None
    if needed and not content.strip():
        raise ValueError(f"{where} is empty; an answer needs text")
    return content


def _check_order(roles: list[str], name: str) -> None:
    for index, (before, role) in enumerate(zip([None, *roles], roles, strict=False)):
        if role in ("system", "developer") and index > 0:
            raise ValueError(f"{name}[{index}] is a system message; only the first message may be one")
        if role == "assistant" and before != "user":
            raise ValueError(f"{name}[{index}] is an answer, and the message before it is not the user's")
        if role == before:
            raise ValueError(f"{name}[{index}] and the one before are both of the {role}; join them")


def _shown(value: object) -> str:
    return "missing" if value is None else repr(value)[:60]
