"""What llama.cpp makes of texts: `python .../llama_cpp_ids.py FILE.gguf < texts.json > ids.json`.

Runs alone, where `llama-cpp-python` is installed (the extra `peers`). Each text gets its ids with control
tokens found in it, and its ids with them read as plain text.
"""

import json
import sys


def main(path: str) -> None:
    """Write a list of [text, ids, ids as plain text]."""
    from llama_cpp import Llama  # type: ignore[import-not-found]  # noqa: PLC0415 (not among our dependencies)

    model = Llama(path, vocab_only=True, verbose=False)

    def ids(text: str, special: bool) -> list[int]:
        found: list[int] = model.tokenize(text.encode(), add_bos=False, special=special)
        return found

    json.dump([[text, ids(text, True), ids(text, False)] for text in json.load(sys.stdin)], sys.stdout)


if __name__ == "__main__":
    main(sys.argv[1])
