"""Conversations in the shapes of four coding agents, written here from their public documentation.

Each agent keeps its own history as its client does, sends the fields and tools that the client sends, and
reads the answer. Its prompts have a few thousand tokens, as those of coding agents have.
"""

import random
from abc import ABC, abstractmethod
from typing import Any

RULES = " ".join(
    f"Rule {n}: read the file before you change it, and keep line {n * 7} short." for n in range(400)
)
FILES = ("app.py", "lib.py", "test_app.py")
SCHEMA: Any = {
    "type": "object",
    "properties": {"path": {"type": "string", "enum": list(FILES)}},
    "required": ["path"],
    "additionalProperties": False,
}
TOOLS = ("read_file", "list_lines", "run_tests")
ABOUT = "Use it for one file of the project at a time, and say why you need it."
QUESTIONS = ("Fix the test.", "Why does it fail?", "Rename the function.", "Add a test for the empty list.")
RESULT = "def first(items):\n    return items[0] if items else None\n"


class Agent(ABC):
    """One conversation.

    Attributes:
        path: The route that the client uses.
        tool_turn: The model is made to call a tool in the next answer, so that all kinds of turns come.
    """

    path: str

    def __init__(self) -> None:
        self.draw = random.Random(self.path)
        self.tool_turn = False
        self.turn = 0

    def begin_turn(self) -> None:
        """Adds the user's next message, or the results of the tools that were called."""
        self.turn += 1
        self.tool_turn = self.turn % 3 != 0
        self.add_input(f"{self.draw.choice(QUESTIONS)} ({self.turn})")

    @abstractmethod
    def add_input(self, question: str) -> None:
        """Adds results of open calls; without any the question."""

    @abstractmethod
    def body(self) -> dict[str, Any]:
        """The body of the next request."""

    @abstractmethod
    def take(self, answer: dict[str, Any]) -> None:
        """Adds a whole answer to the history."""

    @abstractmethod
    def counts(self, answer: dict[str, Any]) -> tuple[int, int]:
        """Tokens of the prompt, and those of them that were cached."""


class ClaudeCode(Agent):
    """Messages API: a billing block with a checksum, a moving cache mark, Anthropic's own tools."""

    path = "/v1/messages"

    def __init__(self) -> None:
        super().__init__()
        self.messages: list[dict[str, Any]] = []
        self.calls: list[dict[str, Any]] = []

    def add_input(self, question: str) -> None:
        reminder = {"type": "text", "text": "<system-reminder>\nThe todo list is empty.\n</system-reminder>"}
        results: list[dict[str, Any]] = [
            {"type": "tool_result", "tool_use_id": call["id"], "content": [{"type": "text", "text": RESULT}]}
            for call in self.calls
        ]
        self.messages.append(
            {"role": "user", "content": results or [reminder, {"type": "text", "text": question}]}
        )

    def body(self) -> dict[str, Any]:
        checksum = f"{self.draw.getrandbits(20):05x}"
        cached = {"cache_control": {"type": "ephemeral"}}
        system = [
            {
                "type": "text",
                "text": f"x-anthropic-billing-header: cc_version=2.1.37; cc_entrypoint=cli; cch={checksum};",
            },
            {"type": "text", "text": "You are Claude Code, Anthropic's official CLI for Claude.", **cached},
            {"type": "text", "text": RULES, **cached},
        ]
        messages = [dict(message) for message in self.messages]
        last = [dict(block) for block in messages[-1]["content"]]
        last[-1] |= cached  # the mark is on the newest message only
        messages[-1]["content"] = last
        tools: list[dict[str, Any]] = [
            {"name": name, "description": ABOUT, "input_schema": SCHEMA} for name in TOOLS
        ]
        return {
            "model": "claude-opus-4-6",
            "max_tokens": 48,
            "system": system,
            "messages": messages,
            "tools": [*tools, {"type": "web_search_20250305", "name": "web_search", "max_uses": 8}],
            "tool_choice": {"type": "any" if self.tool_turn else "none", "disable_parallel_tool_use": True}
            if self.tool_turn
            else {"type": "auto"},
            "metadata": {"user_id": "user_1_session_2"},
            "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
            "thinking": {"type": "adaptive"},
        }

    def take(self, answer: dict[str, Any]) -> None:
        self.calls = [block for block in answer["content"] if block["type"] == "tool_use"]
        self.messages.append({"role": "assistant", "content": answer["content"]})

    def counts(self, answer: dict[str, Any]) -> tuple[int, int]:
        usage = answer["usage"]
        cached = usage["cache_read_input_tokens"]
        return usage["input_tokens"] + usage["cache_creation_input_tokens"] + cached, cached


class Codex(Agent):
    """Responses API: nothing stored, the whole history as items, a freeform tool, tools that a host runs."""

    path = "/v1/responses"

    def __init__(self) -> None:
        super().__init__()
        context = "<environment_context>\n  <cwd>/repo</cwd>\n  <shell>bash</shell>\n</environment_context>"
        self.items: list[dict[str, Any]] = [
            {
                "type": "message",
                "role": "developer",
                "content": [{"type": "input_text", "text": "Ask before you delete."}],
            },
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": context}]},
        ]
        self.calls: list[dict[str, Any]] = []

    def add_input(self, question: str) -> None:
        for call in self.calls:
            kind = f"{call['type']}_output"
            self.items.append({"type": kind, "call_id": call["call_id"], "output": RESULT})
        if not self.calls:
            part = {"type": "input_text", "text": question}
            self.items.append({"type": "message", "role": "user", "content": [part]})

    def body(self) -> dict[str, Any]:
        tools: list[dict[str, Any]] = [
            {"type": "function", "name": name, "description": ABOUT, "strict": False, "parameters": SCHEMA}
            for name in TOOLS
        ]
        grammar = {"type": "grammar", "syntax": "lark", "definition": "start: /.+/"}
        tools += [
            {"type": "custom", "name": "apply_patch", "description": "Edits files.", "format": grammar},
            {"type": "local_shell"},
            {"type": "web_search", "external_web_access": True},
        ]
        return {
            "model": "gpt-5-codex",
            "instructions": RULES,
            "input": self.items,
            "tools": tools,
            "tool_choice": "required" if self.tool_turn else "auto",
            "parallel_tool_calls": False,
            "reasoning": {"effort": "medium", "summary": "auto"},
            "store": False,
            "include": ["reasoning.encrypted_content"],
            "prompt_cache_key": "thread-1",
            "max_output_tokens": 48,
        }

    def take(self, answer: dict[str, Any]) -> None:
        self.calls = [item for item in answer["output"] if item["type"].endswith("_call")]
        self.items += answer["output"]

    def counts(self, answer: dict[str, Any]) -> tuple[int, int]:
        usage = answer["usage"]
        return usage["input_tokens"], usage["input_tokens_details"]["cached_tokens"]


class OpenCode(Agent):
    """Chat completions with tools, as clients of the AI SDK send them."""

    path = "/v1/chat/completions"

    def __init__(self) -> None:
        super().__init__()
        self.messages: list[dict[str, Any]] = [{"role": "system", "content": RULES}]
        self.calls: list[dict[str, Any]] = []

    def add_input(self, question: str) -> None:
        for call in self.calls:
            self.messages.append({"role": "tool", "tool_call_id": call["id"], "content": RESULT})
        if not self.calls:
            self.messages.append({"role": "user", "content": [{"type": "text", "text": question}]})

    def body(self) -> dict[str, Any]:
        return {
            "model": "gpt-4o",
            "messages": self.messages,
            "tools": [
                {"type": "function", "function": {"name": name, "description": ABOUT, "parameters": SCHEMA}}
                for name in TOOLS
            ],
            "tool_choice": "required" if self.tool_turn else "auto",
            "parallel_tool_calls": False,
            "max_tokens": 48,
            "verbosity": "low",
            "prompt_cache_key": "session-1",
        }

    def take(self, answer: dict[str, Any]) -> None:
        message = answer["choices"][0]["message"]
        self.calls = message.get("tool_calls") or []
        kept: dict[str, Any] = {"role": "assistant", "content": message["content"]}
        self.messages.append(kept | ({"tool_calls": self.calls} if self.calls else {}))

    def counts(self, answer: dict[str, Any]) -> tuple[int, int]:
        usage = answer["usage"]
        return usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"]


class Cline(OpenCode):
    """Chat completions without tools: calls and results are text, with the environment in each message."""

    def __init__(self) -> None:
        super().__init__()
        self.messages = [
            {"role": "system", "content": f"{RULES}\nWrite calls as <read_file><path>...</path></read_file>."}
        ]

    def add_input(self, question: str) -> None:
        seen = "\n".join(self.draw.sample(FILES, 2))
        environment = f"<environment_details>\nTime: 10:{self.turn:02}\n{seen}\n</environment_details>"
        asked = f"<task>{question}</task>" if self.turn == 1 else f"[read_file] Result:\n{RESULT}"
        parts = [{"type": "text", "text": text} for text in (f"{asked}\n", environment)]
        self.messages.append({"role": "user", "content": parts})

    def body(self) -> dict[str, Any]:
        return {
            "model": "gpt-4o",
            "messages": self.messages,
            "max_tokens": 40,
            "temperature": 0,
            "prediction": {"type": "content", "content": RESULT},
        }


AGENTS: list[type[Agent]] = [ClaudeCode, Codex, OpenCode, Cline]
