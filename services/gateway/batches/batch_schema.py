"""The body of `POST /v1/batches`, as OpenAI's clients send it."""

import re
from typing import Annotated, Literal

from pydantic import AfterValidator, Field
from pydantic_core import PydanticCustomError

from services.gateway.bodies.body_types import LenientBody, RequestBody

WINDOW = r"^[0-9]{1,6}[smhd]$"
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
MAX_WINDOW_S = 30 * 86_400


def _check_window(text: str) -> str:
    if not re.fullmatch(WINDOW, text):
        raise PydanticCustomError(
            "wrong", "must be a number and s, m, h or d, such as 24h; at most 30d", {"at": ""}
        )
    return text


class ExpiresAfter(LenientBody):
    """When the files that a batch writes go."""

    anchor: Literal["created_at"] = "created_at"
    seconds: Annotated[int, Field(ge=3600, le=2_592_000)]


class BatchRequest(RequestBody):
    """The body of `POST /v1/batches`."""

    input_file_id: Annotated[str, Field(min_length=1, max_length=64)]
    endpoint: Literal["/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses"]
    completion_window: Annotated[
        str,
        AfterValidator(_check_window),
        Field(
            description="A number and s, m, h or d, at most 30d; what is left then ends.",
            json_schema_extra={"pattern": WINDOW},
        ),
    ] = "24h"
    metadata: (
        Annotated[
            dict[Annotated[str, Field(max_length=64)], Annotated[str, Field(max_length=512)]],
            Field(max_length=16),
        ]
        | None
    ) = None
    output_expires_after: ExpiresAfter | None = None


def window_s(text: str) -> int:
    """The seconds of a completion window."""
    return min(MAX_WINDOW_S, int(text[:-1]) * _UNITS[text[-1]])
