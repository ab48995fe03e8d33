"""The tokens with quotes, which can end a key of a JSON object."""

from collections.abc import Sequence


class QuoteTokens:
    """The tokens of a vocabulary that can end a key: those with a quote. Made once for each.

    Attributes:
        single: Tokens with one quote, by the bytes before it.
        others: Tokens with more quotes, or with a backslash before one, and their bytes.
    """

    def __init__(self, tokens: Sequence[bytes]) -> None:
        self.single: dict[bytes, list[int]] = {}
        self.others: list[tuple[int, bytes]] = []
        for token_id, data in enumerate(tokens):
            if data.count(b'"') > 1 or (b'"' in data and b"\\" in data):
                self.others.append((token_id, data))
            elif b'"' in data:
                self.single.setdefault(data.partition(b'"')[0], []).append(token_id)
