"""What the KV cache of one group takes, and what it is limited to. Pure; `now` is monotonic seconds.

A lower limit counts once the memory of the group was measured after it, a higher one at once.
"""

from dataclasses import dataclass

from shared.messages import KVLimited


@dataclass(slots=True)
class GroupKVSize:
    """Of a group whose leader has not said anything yet, and of one that keeps its size, all are 0.

    Attributes:
        most_bytes: All of it.
        least_bytes: The model's minimum.
        needed_bytes: What running requests hold and need soon.
        limit_bytes: What counts.
        asked_bytes: The limit that the leader was asked for last. It differs from `limit_bytes` until the
            memory of the group was measured.
        changed_at: The time of the last change of the limit; None: there was none.
        answers: The leader did at the last command, or has since: others may ask it for memory.
    """

    most_bytes: int = 0
    least_bytes: int = 0
    needed_bytes: int = 0
    limit_bytes: int = 0
    asked_bytes: int = 0
    changed_at: float | None = None
    answers: bool = True

    @property
    def is_settled(self) -> bool:
        """Whether the effect of the last limit was measured."""
        return self.asked_bytes == self.limit_bytes

    @property
    def charged_bytes(self) -> int:
        """What counts for it."""
        return max(self.limit_bytes, self.asked_bytes)

    @property
    def repeated_bytes(self) -> int:
        """The limit to tell a leader, which may have started again; 0: none."""
        return self.asked_bytes if self.asked_bytes < self.most_bytes else 0

    def note_said(self, said: KVLimited, least_tokens: int) -> None:
        """The leader has answered.

        Args:
            least_tokens: The model's minimum by its entry; 0: it has none.
        """
        self.answers = True
        if self.is_settled:
            self.limit_bytes = self.asked_bytes = said.limit_bytes
        self.most_bytes, self.needed_bytes = said.most_bytes, said.needed_bytes
        least = said.most_bytes * least_tokens // max(1, said.most_tokens)
        self.least_bytes = min(said.most_bytes, max(said.least_bytes, least))

    def ask(self, limit_bytes: int) -> None:
        """Notes the limit that the leader will be asked for; a higher one counts from now on."""
        self.asked_bytes = limit_bytes

    def confirm(self, limit_bytes: int, now: float) -> bool:
        """The leader holds this limit; returns whether it is another one than before."""
        self.asked_bytes = limit_bytes
        if self.is_settled:
            return False
        self.changed_at = now
        return True

    def settle(self) -> None:
        """The memory of the group was measured since."""
        self.limit_bytes = self.asked_bytes

    def cancel(self) -> None:
        """The leader did not answer. The old limit is sent again, and no other one before it has answered."""
        self.asked_bytes, self.answers = self.limit_bytes, False
