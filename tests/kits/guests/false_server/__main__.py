"""Runs the false server in a process of its own: `python -m tests.kits.guests.false_server --style vllm`.

Prints its port when it listens.
"""

import argparse
import asyncio
import os
from pathlib import Path
from typing import get_args

from services.worker.model_files.load_model import load_model
from services.worker.null.model import END, ByteTokenizer
from services.worker.text.tokenizer import Tokenizer, read_tokenizer
from tests.kits.guests.false_server.scripts import DEFAULT_TEXT, Style, Voice
from tests.kits.guests.false_server.server import FalseServer


def _tokenizer(path: Path | None) -> Tokenizer:
    if path is None:
        return ByteTokenizer()
    return load_model(path).tokenizer if path.suffix == ".gguf" else read_tokenizer(path)


async def serve(arguments: argparse.Namespace) -> None:
    """Serves until the process is ended."""
    tokenizer = _tokenizer(arguments.tokenizer)
    voice = Voice(
        style=arguments.style,
        tokenizer=tokenizer,
        answer=tokenizer.encode(arguments.text, add_special_tokens=False),
        end_id=arguments.end_id,
        model=arguments.model,
        num_tokens=arguments.tokens,
    )
    server = FalseServer(voice, api_key=arguments.api_key, die=lambda: os._exit(1))
    await server.start(arguments.port, host=arguments.host)
    if arguments.behave:
        server.behave(arguments.behave, after=arguments.after)
    print(server.port, flush=True)
    await asyncio.Event().wait()


def main() -> None:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--style", choices=get_args(Style), default="vllm")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--model", default="demo")
    parser.add_argument("--text", default=DEFAULT_TEXT, help="the endless answer")
    parser.add_argument("--tokens", type=int, default=0, help="tokens after which answers end by themselves")
    parser.add_argument(
        "--tokenizer", type=Path, help="a tokenizer.json or a GGUF file; tokens are bytes without one"
    )
    parser.add_argument("--end-id", type=int, default=END)
    parser.add_argument("--api-key", default="")
    parser.add_argument("--behave", default="")
    parser.add_argument("--after", type=int, default=3)
    asyncio.run(serve(parser.parse_args()))


if __name__ == "__main__":
    main()
