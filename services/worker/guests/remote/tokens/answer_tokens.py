"""Makes the tokens of one answer of what a stream brings, and finds what was lost or came twice."""

from collections.abc import Sequence

from services.worker.guests.port import FinishedBy, GuestSequence
from services.worker.guests.remote.tokens.text_tokens import AnswerText, TextTokens
from services.worker.guests.remote.wire.dialect import Piece
from services.worker.guests.remote.wire.server_error import ServerError
from services.worker.rank_protocol.plan import Sampled

_MOST_OF_CHARACTER = 4  # tokens that a character can be split into


class AnswerTokens:
    """One answer.

    Args:
        texts: Makes tokens of text; None: the vocabulary does not allow it, and the server brings ids.
        vocab_size: Token ids are below it.
        prompt_tokens: What the server must count for the prompt; -1: it need not count as we do.
    """

    __slots__ = (
        "_eos_ids",
        "_prompt_tokens",
        "_sequence",
        "_server_count",
        "_text",
        "_texts",
        "_vocab_size",
        "num_tokens",
    )

    def __init__(
        self, sequence: GuestSequence, *, texts: TextTokens | None, vocab_size: int, prompt_tokens: int
    ) -> None:
        self._sequence = sequence
        self._texts = texts
        self._text = AnswerText(texts) if texts is not None else None
        self._eos_ids = frozenset(sequence.new.eos_ids)
        self._vocab_size = vocab_size
        self._prompt_tokens = prompt_tokens
        self._server_count = 0
        self.num_tokens = 0

    def take(self, piece: Piece) -> tuple[list[Sampled], FinishedBy]:
        """Return the tokens of a piece, and why the answer ends with them; empty: it goes on.

        Raises:
            ServerError: The piece does not follow what came before, or cannot be what was asked for.
        """
        self._check_prompt(piece)
        ids = self._ids(piece)
        limit = self._sequence.max_tokens - self.num_tokens
        finished = piece.finished
        ends = 0 if self._sequence.new.sampling.ignore_eos else self._first_end(ids)
        if ends:
            ids, finished = ids[:ends], "stop"
        elif finished == "stop":
            ids = self._stopped(ids, limit)
        if len(ids) >= limit:
            finished = "stop" if finished == "stop" and len(ids) == limit else "length"
            ids = ids[:limit]
        sampled = self._sampled(ids, piece)
        self.num_tokens += len(ids)
        return sampled, finished

    def _ids(self, piece: Piece) -> Sequence[int]:
        """Return the tokens of a piece, after the check of the server's count."""
        added = piece.counted - self._server_count
        if piece.counted >= 0:
            self._server_count = piece.counted
        if piece.token_ids is None:
            if piece.counted >= 0 and piece.text and not added and not piece.finished:
                raise _miscounted(piece)
            return self._text_ids(piece)
        ids: Sequence[int] = piece.token_ids
        for token_id in ids:
            if not 0 <= token_id < self._vocab_size:
                raise ServerError(f"sent the token {token_id}, which the vocabulary does not have")
        least = most = len(ids)
        if piece.text_rules:
            if self._texts is not None and self._texts.bytes_of(ids) != piece.text.encode(
                errors="surrogatepass"
            ):
                ids = self._text_ids(piece)
                least, most = 1, _MOST_OF_CHARACTER * len(piece.text)
            if piece.finished == "stop":
                most += 1  # the token that ends it
            elif piece.finished:
                most += _MOST_OF_CHARACTER  # the end is within a character
        if piece.counted >= 0 and not least <= added <= most:
            raise _miscounted(piece)
        return ids

    def _text_ids(self, piece: Piece) -> Sequence[int]:
        if self._text is None:
            if not piece.text:
                return ()
            raise ServerError("sent text where token ids were asked for")
        ids = self._text.feed(piece.text)
        return ids + self._text.end() if piece.finished else ids

    def _first_end(self, ids: Sequence[int]) -> int:
        """Return the number of tokens up to the first that ends the answer, which included; 0: none does."""
        return next((index + 1 for index, token_id in enumerate(ids) if token_id in self._eos_ids), 0)

    def _stopped(self, ids: Sequence[int], limit: int) -> Sequence[int]:
        if self._sequence.new.sampling.ignore_eos:
            raise ServerError("ended the answer at its end token, which the request wants to be ignored")
        if not self._eos_ids or len(ids) >= limit:
            return ids
        return [*ids, self._sequence.new.eos_ids[0]]

    def _check_prompt(self, piece: Piece) -> None:
        told = self._prompt_tokens >= 0 and piece.prompt_tokens > 0
        if told and piece.prompt_tokens != self._prompt_tokens:
            raise ServerError(f"read {piece.prompt_tokens} tokens of a prompt that has {self._prompt_tokens}")

    def _sampled(self, ids: Sequence[int], piece: Piece) -> list[Sampled]:
        seq_id, wanted = self._sequence.new.seq_id, self._sequence.new.sampling.logprobs
        if wanted < 0:
            return [Sampled(seq_id=seq_id, token_id=token_id) for token_id in ids]
        known = piece.logprobs
        made = list[Sampled]()
        for index, token_id in enumerate(ids):
            if index < len(known) and known[index].token_id == token_id:
                one = known[index]
                made.append(
                    Sampled(seq_id=seq_id, token_id=token_id, logprob=one.logprob, top=one.top[:wanted])
                )
            elif piece.finished == "stop" and index == len(ids) - 1 and token_id in self._eos_ids:
                made.append(Sampled(seq_id=seq_id, token_id=token_id))  # it is not shown
            else:
                raise ServerError("left out the log probability of a token")
        return made


def _miscounted(piece: Piece) -> ServerError:
    return ServerError(
        f"counts {piece.counted} tokens of the answer where another number came: some were lost or came twice"
    )
