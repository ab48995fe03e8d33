"""The answer to a path that is not served: the nearest one that is, and a page for browsers. Pure."""

import difflib
import html
from collections.abc import Iterable, Mapping

from services.gateway.admission.refusals import Headers

# paths of other servers, by what stands here in their place
_ELSEWHERE = {
    "/api/chat": "/v1/chat/completions",  # Ollama
    "/api/generate": "/v1/completions",
    "/api/embed": "/v1/embeddings",
    "/api/embeddings": "/v1/embeddings",
    "/api/tags": "/v1/models",
    "/api/ps": "/v1/models",
    "/api/show": "/v1/models",
    "/api/version": "/v1/models",
    "/completion": "/v1/completions",  # llama.cpp
    "/props": "/v1/models",
    "/embedding": "/v1/embeddings",
    "/generate": "/v1/completions",  # Text Generation Inference
    "/generate_stream": "/v1/completions",
    "/v1/complete": "/v1/messages",  # Anthropic's former API
    "/v1/engines": "/v1/models",
    "/docs": "/openapi.json",
    "/redoc": "/openapi.json",
    "/swagger": "/openapi.json",
    "/healthz": "/health",
    "/readyz": "/ready",
    "/livez": "/live",
    "/ping": "/health",
}
_ALIKE = 0.6  # of `SequenceMatcher.ratio`
_LONGEST = 128  # characters of a path that are compared
_PAGE = (
    '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Not found · Ryzanstein</title></head>'
    "<body><h1>Not found</h1><p>{problem}</p>{link}"
    '<p><a href="/">Chat</a> · <a href="/openapi.json">All paths</a></p></body></html>'
)
_PAGE_HEADERS: Headers = [
    (b"content-security-policy", b"default-src 'none'; base-uri 'none'; frame-ancestors 'none'"),
    (b"referrer-policy", b"no-referrer"),
]  # the others are those of all answers


def nearest_path(path: str, served: Iterable[str]) -> str:
    """Returns the served path that was probably meant; empty if none is like it.

    Args:
        path: What was asked for.
        served: Paths without parameters.
    """
    asked = "/" + path[:_LONGEST].strip("/").lower()
    if len(path) > _LONGEST:
        return ""
    if asked in _ELSEWHERE:
        return _ELSEWHERE[asked]
    known = sorted(served)
    last = [one for one in known if one == f"/v1{asked}" or (asked.endswith(one) and one != "/")]
    if last:
        return max(last, key=len)
    return next(iter(difflib.get_close_matches(asked, known, n=1, cutoff=_ALIKE)), "")


def wants_page(headers: Mapping[str, str]) -> bool:
    """Whether a caller is a browser that shows a page: it prefers HTML to JSON."""
    accepted = headers.get("accept", "").lower()
    return accepted.startswith("text/html")


def unknown_path_page(problem: str, nearest: str) -> tuple[bytes, Headers]:
    """Returns the page of an unknown path and its headers; both texts may have characters of HTML."""
    link = f'<p><a href="{html.escape(nearest)}">{html.escape(nearest)}</a></p>' if nearest else ""
    return _PAGE.format(problem=html.escape(problem), link=link).encode(), _PAGE_HEADERS


def meant(nearest: str) -> str:
    """Returns what an error says of the nearest path."""
    return f"there is no such path; did you mean {nearest}? " if nearest else "there is no such path; "
