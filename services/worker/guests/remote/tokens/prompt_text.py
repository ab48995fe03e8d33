"""Spells a prompt as text for servers that take no token ids."""

from services.worker.guests.remote.wire.server_error import ServerError
from services.worker.text.tokenizer import Tokenizer


class PromptText:
    """Prompts of one tokenizer.

    Args:
        begins: The token that the server puts before each text by itself; None: it puts none there.
    """

    def __init__(self, tokenizer: Tokenizer, begins: int | None) -> None:
        self._tokenizer = tokenizer
        self._begins = begins
        names = tokenizer.vocabulary()
        self._added = frozenset(names[text] for text in tokenizer.added_texts if text in names)

    def text(self, token_ids: list[int]) -> str:
        """Return the text of a prompt, without what the server adds.

        Tokens of an answer need not be those that the tokenizer makes of their text; the text is the same.

        Raises:
            ServerError: The prompt cannot be said as text.
        """
        if self._begins is not None:
            if not token_ids or token_ids[0] != self._begins:
                raise ServerError(
                    "puts its first token before each prompt, and this prompt does not begin with it"
                )
            token_ids = token_ids[1:]
        decoded = self._tokenizer.decode(token_ids)
        if self._read(decoded) == token_ids:
            return decoded
        spelled = self._spelled(token_ids)
        if spelled is None:
            raise ServerError("takes prompts as text only, and this one ends within a character")
        if self._control(self._read(spelled)) != self._control(token_ids):
            raise ServerError(
                "takes prompts as text only, and would read a text of this one as a control token"
            )
        return spelled

    def _read(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, add_special_tokens=False)

    def _control(self, token_ids: list[int]) -> list[int]:
        return [token_id for token_id in token_ids if token_id in self._added]

    def _spelled(self, token_ids: list[int]) -> str | None:
        """Return the bytes of all tokens as text; None if they are no whole characters."""
        special = self._tokenizer.special_ids
        data = b"".join(
            self._tokenizer.token_text(token_id).encode()
            if token_id in special
            else self._tokenizer.token_bytes(token_id)
            for token_id in token_ids
        )
        try:
            return data.decode()
        except UnicodeDecodeError:
            return None
