"""The files of the pages: read once, with their types, tags and the headers that browsers are to keep to.

The files are small and few, so all of them stay in memory. Which path shows which file is decided in
`page_app.py`.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources import files
from importlib.resources.abc import Traversable

from services.gateway.admission.errors.refusals import Headers

CSP = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data:",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types dompurify",  # the sanitizer's own policy; the pages' scripts set no markup from text
    )
)
_TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "mjs": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
    "json": "application/json",
    "txt": "text/plain; charset=utf-8",
}
_SAFETY: Headers = [
    (b"content-security-policy", CSP.encode()),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"permissions-policy", b"camera=(), geolocation=(), microphone=()"),
]


@dataclass(frozen=True, slots=True)
class StaticFile:
    """A file as it is sent.

    Attributes:
        body: Its bytes.
        tag: Its `ETag`.
        headers: Of the answer, without those of its length.
    """

    body: bytes
    tag: bytes
    headers: Headers

    def matches(self, condition: bytes) -> bool:
        """Returns whether an `If-None-Match` names this version, so that the browser has it already."""
        tags = {tag.strip().removeprefix(b"W/") for tag in condition.split(b",")}
        return self.tag in tags or b"*" in tags


def read_static_files() -> dict[str, StaticFile]:
    """All files below `static/` by their paths, such as `js/chat.js`."""
    root = files(__package__ or "") / "static"
    return {path: _static_file(path, entry.read_bytes()) for path, entry in _walk(root, "")}


def _walk(folder: Traversable, prefix: str) -> Iterator[tuple[str, Traversable]]:
    for entry in folder.iterdir():
        path = f"{prefix}{entry.name}"
        if entry.is_dir():
            yield from _walk(entry, f"{path}/")
        else:
            yield path, entry


def _static_file(path: str, body: bytes) -> StaticFile:
    tag = b'"%s"' % hashlib.sha256(body).hexdigest()[:32].encode()
    kind = _TYPES.get(path.rpartition(".")[2], "text/plain; charset=utf-8")
    # asked for again with the tag each time: after an upgrade no page mixes files of two versions
    caching: Headers = [(b"etag", tag), (b"cache-control", b"no-cache")]
    return StaticFile(body, tag, [(b"content-type", kind.encode()), *caching, *_SAFETY])
