"""The fields that all parts of one answer share, whatever its format."""

from dataclasses import dataclass

from services.gateway.answering.resumption.resume_token import ResumeToken, answer_id
from shared.messages import Accepted, GenerateRequest


@dataclass(frozen=True, slots=True)
class Envelope:
    """The fields that all parts of one answer share.

    Attributes:
        answer_id: The answer's id as its caller sees it.
        created_s: When its request came, in seconds since 1970.
        model: The name that the caller asked for.
        session_id: Empty if there is no session.
        fingerprint: Of the model's weights, as `/v1/models` shows it; empty: not known.
        service_tier: Under which the request was served, for callers that asked for one; empty: not told.
    """

    answer_id: str
    created_s: int
    model: str
    session_id: str = ""
    fingerprint: str = ""
    service_tier: str = ""


def envelope_of(
    token: ResumeToken, request: GenerateRequest, request_id: str = "", accepted: Accepted | None = None
) -> Envelope:
    """The envelope of an answer.

    Args:
        token: Of the request.
        request: The only generation, or the first of several.
        request_id: Of the call, if it has several generations.
        accepted: Names the weights that answer; None: they are not known.
    """
    return Envelope(
        answer_id(token.kind, request_id or request.request_id),
        token.created_s,
        request.model,
        request.session.session_id if request.session else "",
        fingerprint_of(accepted),
    )


def fingerprint_of(accepted: Accepted | None) -> str:
    """The fingerprint of the weights that answer, as `/v1/models` shows it; empty if it is not known."""
    return accepted.fingerprint.partition("/")[0] if accepted is not None else ""
