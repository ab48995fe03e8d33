"""Every message that crosses the bus, and nothing else. Start reading at `generate.py`."""

from shared.messages.base import Wire
from shared.messages.fleet import (
    Heartbeat,
    ListModels,
    Load,
    ModelCard,
    ModelList,
    ServiceStatus,
    State,
    StatusQuery,
)
from shared.messages.frames import (
    Accepted,
    AnyFrame,
    Cancel,
    Delta,
    Done,
    Failed,
    FinishReason,
    FrameBatch,
    Resend,
    ResendReply,
    TokenLogprob,
    Tokens,
    TopLogprob,
    Usage,
)
from shared.messages.generate import (
    ChatMessage,
    GenerateRequest,
    ResumePoint,
    Role,
    Route,
    Sampling,
    SessionRef,
    Work,
)
from shared.messages.sessions import (
    ErrorReply,
    SessionCommit,
    SessionCommitted,
    SessionDelete,
    SessionDeleted,
    SessionFound,
    SessionGet,
    SessionList,
    SessionPage,
    SessionRecord,
    SessionSummary,
)

__all__ = [
    "Accepted", "AnyFrame", "Cancel", "ChatMessage", "Delta", "Done", "ErrorReply", "Failed", "FinishReason",
    "FrameBatch", "GenerateRequest", "Heartbeat", "ListModels", "Load", "ModelCard", "ModelList", "Resend",
    "ResendReply", "ResumePoint", "Role", "Route", "Sampling", "ServiceStatus", "SessionCommit",
    "SessionCommitted", "SessionDelete", "SessionDeleted", "SessionFound", "SessionGet", "SessionList",
    "SessionPage", "SessionRecord", "SessionRef", "SessionSummary", "State", "StatusQuery", "TokenLogprob",
    "Tokens", "TopLogprob", "Usage", "Wire", "Work",
]  # fmt: skip
