"""Calls about a request's frames: cancel it, ask for frames again, take it over from another caller."""

from typing import Annotated, ClassVar

import msgspec

from shared.messages.base import (
    MAX_ATTEMPT,
    SMALL,
    TENANT_OR_NONE,
    Attempt,
    GroupName,
    RequestId,
    SessionId,
    Tenant,
    Wire,
)
from shared.messages.frames import AnyFrame

Owner = Annotated[
    str,
    msgspec.Meta(
        pattern=TENANT_OR_NONE,
        description="Whose request it is. On a tenant's subject that tenant counts; elsewhere an empty one "
        "means every request of that id.",
    ),
]


class Cancel(Wire, frozen=True, kw_only=True):
    """The caller no longer wants the answer. Unknown request ids are no error; there is no reply.

    Attributes:
        attempt: This attempt and those before it end. A later one, perhaps on the same group, goes on.
        instance_id: The leader that is meant; another leader of the same name ignores the message. Empty:
            any.
    """

    max_bytes: ClassVar[int] = SMALL
    request_id: RequestId
    reason: str = ""
    attempt: Attempt = MAX_ATTEMPT
    instance_id: str = ""
    tenant: Owner = ""


class Delivered(Wire, frozen=True, kw_only=True):
    """The caller of a turn is connected and gets the end of its answer. Sent for requests with `confirms`."""

    max_bytes: ClassVar[int] = SMALL
    request_id: RequestId
    tenant: Tenant
    session_id: SessionId


class Resend(Wire, frozen=True, kw_only=True):
    """Asks a leader for the frames from a number on. It answers with a `ResendReply`.

    Attributes:
        instance_id: The leader that is meant; another leader of the same name does not answer. Empty: any.
    """

    max_bytes: ClassVar[int] = SMALL
    request_id: RequestId
    attempt: int = 0
    from_seq: Annotated[int, msgspec.Meta(ge=0)]
    instance_id: str = ""
    tenant: Owner = ""


class ResendReply(Wire, frozen=True, kw_only=True):
    """Answer to `Resend`. `known` is false if the leader does not have that attempt, or no longer.

    Attributes:
        attempt: The newest attempt at the request that the leader knows. If it is higher than the caller's,
            another caller has attached to the request.
    """

    known: bool
    next_seq: int = 0
    frames: list[AnyFrame] = []
    attempt: int = 0


class Attach(Wire, frozen=True, kw_only=True):
    """Asks all leaders for a request of another caller. The leader that has it hands it over.

    From then on its frames go to `reply_to` under the next attempt, so that the former caller can neither end
    it nor start it again. Only requests of that tenant with a `note` are handed over.

    Attributes:
        call_key: Asks for the request with that key, unless it has failed or has `request_id`: that is
            the asker's own, published since. A request with another `call_digest` is returned in the answer
            and is not handed over.
    """

    max_bytes: ClassVar[int] = SMALL
    request_id: RequestId
    tenant: Tenant
    reply_to: str
    call_key: str = ""
    call_digest: str = ""


class Attached(Wire, frozen=True, kw_only=True):
    """Answer to `Attach` of the leader that has the request, running or just ended. Others do not answer.

    Attributes:
        request: The encoded `GenerateRequest` with the attempt that counts now. If it has ended it has no
            prompt: its frames can be read, but no other group can begin it again.
        first_seq: Number of the oldest frame that the leader keeps for `Resend`.
        next_seq: Number of the next frame.
    """

    request: bytes
    group: GroupName
    instance_id: str = ""
    first_seq: int = 0
    next_seq: int = 0
