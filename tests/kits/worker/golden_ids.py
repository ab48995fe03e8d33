"""llama.cpp's ids of the texts of `tokenizer_texts.py` as short digests, one for each text.

`python -m tests.kits.worker.golden_ids NAME ids.json ...` writes `golden_ids.json` from the output of
`llama_cpp_ids.py`. The vocabularies themselves are not in the repository.
"""

import json
import sys
from hashlib import sha256
from pathlib import Path

FILE = Path(__file__).with_suffix(".json")
DIGITS = 6  # hexadecimal, of each digest


def digest(text: str, ids: list[int]) -> str:
    """Return the digest of a text and its ids."""
    return sha256(json.dumps([text, ids]).encode()).hexdigest()[:DIGITS]


def golden_ids() -> dict[str, dict[str, list[str]]]:
    """Return the digests by model, with control tokens found (`special`) or as plain text (`plain`)."""
    packed = json.loads(FILE.read_text())
    return {
        name: {
            mode: [digests[at : at + DIGITS] for at in range(0, len(digests), DIGITS)]
            for mode, digests in modes.items()
        }
        for name, modes in packed.items()
    }


def main(arguments: list[str]) -> None:
    """Write the digests."""
    packed = {}
    for name, path in zip(arguments[::2], arguments[1::2], strict=True):
        rows = json.loads(Path(path).read_text())
        packed[name] = {
            "special": "".join(digest(text, ids) for text, ids, _ in rows),
            "plain": "".join(digest(text, ids) for text, _, ids in rows),
        }
    FILE.write_text(json.dumps(packed, indent=1) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
