"""Loads a trained adapter into a running stack, and says how to ask it."""

import json
from pathlib import Path

from cli.console import CommandError, fail
from cli.http_api import HttpApi, clean_url


def serve_adapter(url: str, api_key: str, base: str, name: str, adapter: Path) -> str:
    """Load an adapter through the gateway; returns a command that asks it.

    Raises:
        CommandError: The gateway refuses it, or is not there; the adapter stays where it is.
    """
    address = clean_url(url)
    api = HttpApi(address, api_key)
    body = {"lora_name": name, "lora_path": str(adapter.resolve()), "base_model_name": base}
    try:
        api.ask("POST", "/v1/load_lora_adapter", json=body)
    except CommandError as error:
        fail(f"The adapter is in {adapter}, but it was not loaded: {error}", error.exit_code)
    finally:
        api.close()
    question = {"model": f"{base}:{name}", "messages": [{"role": "user", "content": "..."}]}
    key = " -H 'Authorization: Bearer ...'" if api_key else ""
    return (
        f"curl -s {address}/v1/chat/completions{key} -H 'Content-Type: application/json' "
        f"-d '{json.dumps(question)}'"
    )
