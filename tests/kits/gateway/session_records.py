"""Records, paths and errors for tests of `/v1/sessions`."""

from typing import Any
from urllib.parse import quote

import httpx

from shared.codec import pack_tokens
from shared.messages import ChatMessage, SessionRecord
from tests.kits.gateway.session_services import SessionServices

TENANT = "default"


TYPED = {"content-type": "application/json"}


def at(session_id: str, more: str = "") -> str:
    name = quote(session_id, safe="")
    return f"/v1/sessions/{name.replace('.', '%2E')}{more}"


def record(session_id: str = "s1", **more: Any) -> SessionRecord:
    given = {
        "tenant": TENANT,
        "model": "demo",
        "version": 4,
        "messages": [ChatMessage(role="user", content="Hi"), ChatMessage(role="assistant", content="Ho")],
        "token_ids": pack_tokens(range(40)),
        "turns": 1,
        "last_group": "g1",
        "created_ms": 1000,
        "updated_ms": 2000,
    }
    return SessionRecord(session_id=session_id, **{**given, **more})


def store(services: SessionServices, *records: SessionRecord) -> None:
    services.records |= {(one.tenant, one.session_id): one for one in records}


def error_of(answer: httpx.Response) -> tuple[int, str, str]:
    """Status, error code and message of an answer."""
    error = answer.json()["error"]
    assert answer.headers["x-ryz-reason"]
    return answer.status_code, error["code"], error["message"]
