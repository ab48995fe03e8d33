"""One sequence of a guest: the tokens that have arrived and are not in a step yet, and how it ended. Pure.

A guest ends a sequence by its own rules, the leader by the request's. Where the guest brings less than the
leader may still ask for, the sequence ends with an error, so that another group goes on.
"""

from collections import deque

from services.worker.guests.port import GuestPart
from services.worker.rank_protocol.plan import NewSequence, Sampled


class GuestStream:
    """The tokens of a sequence, in the order of their arrival.

    Args:
        most: Tokens that it may bring; later ones are dropped.
        vocab_size: Token ids are below it.
    """

    __slots__ = ("_arrived", "_brought", "_ended", "_last", "_most", "_new", "_vocab_size")

    def __init__(self, new: NewSequence, *, most: int, vocab_size: int) -> None:
        self._new = new
        self._most = most
        self._vocab_size = vocab_size
        self._arrived: deque[Sampled] = deque()
        self._brought = 0
        self._last = -1  # the token that it brought last
        self._ended = ""  # why there is no token behind those that have arrived; empty: it goes on

    @property
    def has_result(self) -> bool:
        """Whether `take_next` returns something."""
        return bool(self._arrived or self._ended)

    def add_part(self, part: GuestPart) -> None:
        """Appends what the guest has brought; nothing after its end."""
        for one in part.sampled:
            if self._ended:
                return
            if one.error:
                self._ended = one.error
            elif one.seq_id != self._new.seq_id:
                self._ended = f"it brought a token of sequence {one.seq_id} for sequence {self._new.seq_id}"
            elif not 0 <= one.token_id < self._vocab_size:
                self._ended = f"it brought token {one.token_id}, and the model has {self._vocab_size} tokens"
            elif self._brought < self._most:
                self._append(one)
        if part.error and not self._ended:
            self._ended = part.error
        if part.finished and not self._ended:
            if part.finished == "stop":
                self._append_end()
            self._ended = f"it ended the sequence after {self._brought} of {self._most} tokens"

    def take_next(self) -> Sampled | None:
        """Removes and returns the oldest token, then the reason why there are no more; None: not yet."""
        if self._arrived:
            return self._arrived.popleft()
        if self._ended:
            return Sampled(seq_id=self._new.seq_id, token_id=0, error=self._ended, cause="guest")
        return None

    def _append(self, one: Sampled) -> None:
        self._arrived.append(one)
        self._brought += 1
        self._last = one.token_id

    def _append_end(self) -> None:
        """Appends the end-of-sequence token that the guest ended by and did not bring, if it may be one."""
        new = self._new
        ends = [] if new.sampling.ignore_eos else new.eos_ids
        has_end = self._brought and (self._last in ends or self._last in new.sampling.stop_token_ids)
        if ends and not has_end and self._brought < self._most:
            self._append(Sampled(seq_id=new.seq_id, token_id=ends[0]))
