"""The lines of output files and error files, as OpenAI's batches have them. Pure."""

from typing import Any

import msgspec

from services.gateway.batches.batch_record import BatchRecord

COMPLETED, FAILED = "completed", "failed"


def answered(
    record: BatchRecord, number: int, custom_id: str, status: int, answer: bytes, *, ignored: str = ""
) -> bytes:
    """The line for a request that was answered, whatever the status.

    Args:
        record: Of the batch.
        number: Of the request in it.
        custom_id: The caller's name of the request.
        status: Of HTTP.
        answer: The body.
        ignored: What was left out of the request; empty: nothing.
    """
    name = record.request_name(number)
    response: dict[str, Any] = {"status_code": status, "request_id": name, "body": _body(answer)}
    if ignored:
        response["ignored"] = ignored
    return _line(name, custom_id, response, None)


def not_answered(record: BatchRecord, number: int, custom_id: str, code: str, message: str) -> bytes:
    """The line for a request that has no answer."""
    return _line(record.request_name(number), custom_id, None, {"code": code, "message": message})


def _body(answer: bytes) -> Any:
    try:
        msgspec.json.decode(answer, type=msgspec.Raw)
    except msgspec.DecodeError:
        return answer.decode("utf-8", "replace")
    return msgspec.Raw(answer)


def _line(name: str, custom_id: str, response: Any, error: Any) -> bytes:
    line = {"id": name, "custom_id": custom_id, "response": response, "error": error}
    return msgspec.json.encode(line) + b"\n"
