"""Records of the Responses API, and the calls of the KV state service that read and write them.

A record holds one response: the items of its input, the whole response object, and the response before it.
Responses form trees, since several may continue one; see docs/decisions/0027. Every call names the tenant; a
response of another tenant does not exist for the caller.
"""

from typing import Annotated, ClassVar

import msgspec

from shared.messages.base import SMALL, Milliseconds, ModelName, Tenant, Wire
from shared.messages.conversation import JsonText

MAX_CHAIN = 256  # records in one answer
MAX_CLAIMED = 16
ResponseId = Annotated[
    str, msgspec.Meta(pattern=r"^[A-Za-z0-9_-]{1,96}\Z", description="Letters, digits, - and _.")
]
LeaseOwner = Annotated[
    str,
    msgspec.Meta(max_length=128, description="Instance of the gateway that brings a response to its end."),
]


class ResponseRecord(Wire, frozen=True, kw_only=True):
    """One response. A record that has ended never changes.

    Attributes:
        parent: The response that it continues; empty: it begins a conversation.
        ended: The response is complete, incomplete, failed or cancelled; false: it is queued or in progress.
        input_items: The items of its own input in OpenAI's form, a JSON array. `instructions` is not there.
        body: The response object in OpenAI's form.
        request: Until it has ended: the encoded `GenerateRequest`, for the gateway that ends it.
    """

    response_id: ResponseId
    tenant: Tenant
    model: ModelName
    parent: Annotated[str, msgspec.Meta(max_length=96)] = ""
    created_ms: int = 0
    ended: bool = True
    input_items: JsonText = "[]"
    body: JsonText = "{}"
    request: bytes = b""


class ResponsePut(Wire, frozen=True, kw_only=True):
    """Stores a record; answered by `ResponseStored`.

    Attributes:
        is_new: There is no record of that id yet. False: it replaces one that has not ended.
        owner: Brings the response to its end, if it has not ended.
        lease_ms: After so many milliseconds without a `ResponseLease`, another gateway may do it.
    """

    record: ResponseRecord
    is_new: bool = True
    owner: LeaseOwner = ""
    lease_ms: Milliseconds = 0


class ResponseStored(Wire, frozen=True, kw_only=True):
    """Answer to `ResponsePut`.

    Attributes:
        stored: False: the record that is there has ended and stays, or it was deleted meanwhile.
        dropped: Records of the tenant, the longest unused ones, that went to make room.
    """

    stored: bool
    dropped: int = 0


class ResponseGet(Wire, frozen=True, kw_only=True):
    """Asks for one record."""

    max_bytes: ClassVar[int] = SMALL
    tenant: Tenant
    response_id: ResponseId


class ResponseFound(Wire, frozen=True, kw_only=True):
    """Answer to `ResponseGet`.

    Attributes:
        abandoned: It has not ended, and the lease of its owner has run out.
    """

    record: ResponseRecord
    abandoned: bool = False


class ResponseChainQuery(Wire, frozen=True, kw_only=True):
    """Asks for a response and those before it, which live on from now like new ones.

    Attributes:
        room: Bytes of records after which the answer ends; there is always one record.
    """

    max_bytes: ClassVar[int] = SMALL
    tenant: Tenant
    response_id: ResponseId
    room: Annotated[int, msgspec.Meta(ge=0)] = 512 * 1024


class ResponseChain(Wire, frozen=True, kw_only=True):
    """Answer to `ResponseChainQuery`: the newest record first.

    Attributes:
        rest: Where the next query goes on; empty: the chain is complete.
    """

    records: Annotated[list[ResponseRecord], msgspec.Meta(max_length=MAX_CHAIN)]
    rest: str = ""


class ResponseLease(Wire, frozen=True, kw_only=True):
    """Takes or renews the lease of a response that has not ended; answered by `ResponseLeased`.

    Attributes:
        lease_ms: From now; 0 gives the lease back.
        takes_over: Also from an owner whose lease has not run out.
    """

    max_bytes: ClassVar[int] = SMALL
    tenant: Tenant
    response_id: ResponseId
    owner: LeaseOwner
    lease_ms: Milliseconds
    takes_over: bool = False


class ResponseLeased(Wire, frozen=True, kw_only=True):
    """Answer to `ResponseLease`. `held` is false if another owner has it, or if the response has ended."""

    held: bool


class ResponseClaim(Wire, frozen=True, kw_only=True):
    """Takes the leases of responses of any tenant whose owners are gone; answered by `ResponsesClaimed`."""

    max_bytes: ClassVar[int] = SMALL
    owner: LeaseOwner
    lease_ms: Milliseconds
    limit: Annotated[int, msgspec.Meta(ge=1, le=MAX_CLAIMED)] = 4


class ResponseName(Wire, frozen=True, kw_only=True):
    """A response by its names."""

    tenant: Tenant
    response_id: ResponseId


class ResponsesClaimed(Wire, frozen=True, kw_only=True):
    """Answer to `ResponseClaim`: responses that the asking gateway is to bring to their end."""

    responses: list[ResponseName] = []


class ResponseDelete(Wire, frozen=True, kw_only=True):
    """Deletes a response. Responses that continue it stay, and cannot be continued themselves any more."""

    max_bytes: ClassVar[int] = SMALL
    tenant: Tenant
    response_id: ResponseId


class ResponseDeleted(Wire, frozen=True, kw_only=True):
    """Answer to `ResponseDelete`."""

    response_id: ResponseId
