"""Knows which leader has a request, and makes the commands that are addressed to leaders. Pure."""

from shared.client.generation.commands import NOTHING, AskResend, Commands, SendCancel


class AssignedLeader:
    """The leader that has a request: an instance of a group.

    Two leaders of one name are as different as two groups.

    Attributes:
        group: The group; empty while none has the request.
        instance_id: Its instance; empty: not known.
    """

    __slots__ = ("_fenced", "group", "instance_id")

    def __init__(self) -> None:
        self.group = self.instance_id = ""
        self._fenced = set[tuple[int, str, str]]()  # whose late frames were answered with a cancel

    def assign(self, group: str, instance_id: str) -> None:
        """That leader has the request."""
        self.group, self.instance_id = group, instance_id

    def set_instance(self, instance_id: str) -> None:
        """The group's instance has said its name."""
        self.instance_id = instance_id

    def is_other(self, group: str, instance_id: str) -> bool:
        """Whether the sender of a frame is known to be another leader; empty names are not known."""
        if group != self.group:
            return bool(group)
        return bool(group and instance_id and self.instance_id and instance_id != self.instance_id)

    def is_meant(self, group: str, instance_id: str) -> bool:
        """Whether a report about an instance of a group is about this one; an empty instance means all."""
        return group == self.group and (
            not instance_id or not self.instance_id or instance_id == self.instance_id
        )

    def cancel(self, attempt: int) -> SendCancel:
        """Cancel the request there; at every group while none has it."""
        return SendCancel(self.group, attempt, self.instance_id)

    def ask_resend(self, from_seq: int) -> AskResend:
        """Ask it for its frames from that number on."""
        return AskResend(self.group, from_seq, self.instance_id)

    def fence(self, attempt: int, group: str, instance_id: str) -> Commands:
        """Cancel an attempt at a leader that works on it in vain, once for each attempt and leader."""
        if not group or (attempt, group, instance_id) in self._fenced:
            return NOTHING
        self._fenced.add((attempt, group, instance_id))
        return (SendCancel(group, attempt, instance_id),)
