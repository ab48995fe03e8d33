"""Loads a trained adapter into a running stack, and says how to ask it."""

import json
import re
from dataclasses import dataclass
from pathlib import Path

from cli.console import CommandError, fail
from cli.http_api import ChatApi, HttpApi, clean_url

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")  # as `AdapterName`


@dataclass(frozen=True, slots=True)
class AdapterStack:
    """Where an adapter is loaded.

    Attributes:
        url: Of the gateway.
        base: Name of the base there.
        name: Of the adapter there.
    """

    url: str
    api_key: str
    base: str
    name: str

    def check(self) -> None:
        """Check before the training that the stack is there and serves the base, and that the name is one.

        Raises:
            CommandError: It is not so.
        """
        if not _NAME.fullmatch(self.name):
            fail(
                f"The adapter cannot be called {self.name[:80]!r}: a name has 1 to 64 letters, digits, "
                "`_`, `.` and `-`. Give one with `--name`.",
                2,
            )
        api = ChatApi(clean_url(self.url), self.api_key)
        try:
            served = [model.name for model in api.models()]
        finally:
            api.close()
        if self.base not in served:
            fail(
                f"The stack at {api.url} serves {', '.join(served)}, and not {self.base}. Name "
                "the base there with `--serve-base`.",
                2,
            )

    def load(self, adapter: Path) -> str:
        """Load an adapter; returns a command that asks it.

        Raises:
            CommandError: The gateway refuses it, or is not there; the adapter stays where it is.
        """
        api = HttpApi(clean_url(self.url), self.api_key)
        body = {"lora_name": self.name, "lora_path": str(adapter.resolve()), "base_model_name": self.base}
        try:
            api.ask("POST", "/v1/load_lora_adapter", json=body)
        except CommandError as error:
            fail(f"The adapter is in {adapter}, but it was not loaded: {error}", error.exit_code)
        finally:
            api.close()
        question = {"model": f"{self.base}:{self.name}", "messages": [{"role": "user", "content": "..."}]}
        key = " -H 'Authorization: Bearer ...'" if self.api_key else ""
        return (
            f"curl -s {api.url}/v1/chat/completions{key} -H 'Content-Type: application/json' "
            f"-d '{json.dumps(question)}'"
        )
