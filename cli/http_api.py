"""Client of the HTTP API for commands.

It finds the stack, asks, and says in one sentence what went wrong. `chat/answers.py` reads streamed answers.
"""

import os
import re
import ssl
from collections.abc import Generator, Mapping
from contextlib import AbstractContextManager, suppress
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn
from urllib.parse import quote

import httpx

from cli.chat.answers import GRACE_S, EventError, StreamPosition, read_answer
from cli.chat.served_models import ListedModel
from cli.console import CommandError, fail
from cli.stack.host.reachability import somebody_listens
from cli.stack.state import DEFAULT_DIR, StateDir, no_stack

if TYPE_CHECKING:
    from pydantic import BaseModel

DEFAULT_URL = "http://127.0.0.1:8000"
CANCEL_S = 2.0
_ADMIN_PATH = "/v1/manage/"
_OTHER_GATEWAY = "`--url` or RYZ_URL another gateway"
_ERRNO = re.compile(r"^\[Errno -?\d+\] ")


def find_url(given: str, state_dir: Path | None, api_key: str = "") -> str:
    """Return the given URL, else that of the stack that is up here, else `RYZ_URL`, else the default.

    Raises:
        CommandError: No stack is up: nothing listens at the default URL; or a state directory was given, or
            a key, which would go to the default URL, where any user of this machine may listen.
    """
    if given:
        return clean_url(given)
    stack = StateDir(state_dir or DEFAULT_DIR)
    state = stack.read()
    if state is None and state_dir is not None:
        fail(no_stack(stack.path, _OTHER_GATEWAY))
    if state is not None:
        return state.url
    if named := os.environ.get("RYZ_URL"):
        return clean_url(named)
    if api_key:
        fail(
            f"No stack is up in {stack.path}, and any user of this machine may listen at {DEFAULT_URL}, so "
            "the API key is not sent there. Name the gateway with `--url` or RYZ_URL.",
            2,
        )
    if not somebody_listens(DEFAULT_URL):
        fail(no_stack(stack.path, _OTHER_GATEWAY))
    return DEFAULT_URL


def clean_url(url: str) -> str:
    """Return the gateway's address with a scheme and without the `/v1` of a client."""
    whole = url if "://" in url else f"http://{url}"
    return whole.rstrip("/").removesuffix("/v1").rstrip("/")


class ApiError(CommandError):
    """The gateway refuses a request; `code` is that of its error, empty if it gave none."""

    def __init__(self, message: str, exit_code: int, code: str) -> None:
        super().__init__(message, exit_code)
        self.code = code


class HttpApi:
    """One gateway. Methods raise `CommandError` with a sentence for a person.

    Args:
        transport: How requests are sent; None: over the network.

    Attributes:
        exit_codes: Exit codes by HTTP status, where they are not 1.
    """

    exit_codes: ClassVar[Mapping[int, int]] = {}

    def __init__(
        self, url: str, api_key: str, timeout_s: float = 300.0, transport: httpx.BaseTransport | None = None
    ) -> None:
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self.url = url
        # a new connection for each request: an idle one may have died, which shows only after a request
        limits = httpx.Limits(max_keepalive_connections=0)
        # reading the certificates of public authorities takes 20 ms; a context without any refuses TLS
        plain = httpx.URL(url).scheme == "http"
        verify: ssl.SSLContext | bool = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT) if plain else True
        self._http = httpx.Client(
            base_url=url,
            headers=headers,
            timeout=timeout_s,
            limits=limits,
            transport=transport,
            verify=verify,
        )

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def ask(self, method: str, path: str, **options: Any) -> httpx.Response:
        """Return the answer to one request; `options` are those of httpx."""
        try:
            answer = self._http.request(method, path, **options)
        except httpx.TransportError as error:
            self._unreachable(error)
        except httpx.DecodingError:
            self.refuse_answer()
        self._check(answer)
        return answer

    def ask_for(self, shape: "type[BaseModel]", method: str, path: str, **options: Any) -> dict[str, Any]:
        """Return the JSON object that answers one request; fail when it has not that shape."""
        answer = self.ask(method, path, **options)
        try:
            shape.model_validate_json(answer.content, strict=True)
            return dict(answer.json())
        except ValueError:  # pydantic's, JSON's and those of bytes that are no text
            self.refuse_answer()

    def refuse_answer(self) -> NoReturn:
        """Fail because the server is no gateway of ours."""
        fail(
            f"{self.url} does not answer as a gateway of this version does. Is it one? `--url` names another."
        )

    def _unreachable(self, error: Exception) -> NoReturn:
        why = _ERRNO.sub("", str(error)) or type(error).__name__
        fail(
            f"No answer from {self.url} ({why}). Is the stack up? "
            "`ryz up` starts one, `--state-dir` or `--url` names another."
        )

    def _check(self, answer: httpx.Response) -> None:
        if not answer.is_error:
            return
        code = ""
        try:
            error = answer.json()["error"]
            message, code = error["message"], str(error.get("code", ""))
        except (ValueError, KeyError, TypeError, AttributeError):
            message = answer.reason_phrase
        if answer.status_code == HTTPStatus.UNAUTHORIZED:  # the gateway's text tells of headers
            message = _key_words(message, code, answer.url.path)
        retry = answer.headers.get("Retry-After")
        again = f", try again in {retry} s" if retry else ""
        exit_code = self.exit_codes.get(answer.status_code, 1)
        raise ApiError(f"{message} (HTTP {answer.status_code}{again})", exit_code, code)


class ChatApi(HttpApi):
    """The requests of `ryz chat`."""

    def models(self) -> list[ListedModel]:
        """Return the models that are served, at least one."""
        answer = self.ask("GET", "/v1/models")
        try:
            models = [_listed(model) for model in answer.json()["data"]]
        except (ValueError, TypeError, KeyError, AttributeError):
            self.refuse_answer()
        if not models:
            fail(f"{self.url} serves no model at the moment; `ryz status` shows why.")
        return models

    def conversation(self, session_id: str) -> list[dict[str, str]]:
        """Return the messages of a session; none if there is no such session."""
        try:
            answer = self.ask("GET", f"/v1/sessions/{quote(session_id, safe='')}", params={"messages": True})
        except ApiError as error:
            if error.code == "session_not_found":
                return []
            raise
        try:
            return [{"role": str(m["role"]), "content": str(m["content"])} for m in answer.json()["messages"]]
        except (ValueError, TypeError, KeyError, AttributeError):
            self.refuse_answer()

    def stream(
        self, body: dict[str, Any], session_id: str, position: StreamPosition
    ) -> Generator[str, None, None]:
        """Yield the answer's text, piece by piece; a connection that breaks costs a pause.

        Closing the generator early cancels the generation.

        Args:
            position: A new one, which is kept up to date.
        """

        def begin_or_go_on(stream_id: str, last_id: str) -> AbstractContextManager[httpx.Response]:
            headers = {"X-Session-Id": session_id, "X-Stream-Grace": f"{GRACE_S:g}"}
            if stream_id:
                path = f"/v1/streams/{stream_id}"
                return self._http.stream("GET", path, headers=headers | {"Last-Event-ID": last_id})
            json = body | {"stream": True}
            return self._http.stream("POST", "/v1/chat/completions", json=json, headers=headers)

        try:
            yield from read_answer(begin_or_go_on, self._check, position)
        except httpx.TransportError as error:
            self._unreachable(error)
        except (httpx.DecodingError, EventError):
            self.refuse_answer()
        finally:
            if position.stream_id and not position.done:
                with suppress(httpx.HTTPError):  # if this fails, the grace time ends the stream
                    self._http.delete(f"/v1/streams/{position.stream_id}", timeout=CANCEL_S)


def _key_words(message: str, code: str, path: str) -> str:
    """Return what a command says of a missing or wrong key, in place of the gateway's text about headers."""
    if _ADMIN_PATH in path:
        return (
            "This needs an admin's key: give one, such as that in STATE_DIR/admin.key, with `--api-key` or "
            "RYZ_API_KEY"
        )
    if code == "missing_api_key":
        message = "the gateway takes no request without an API key"
    message = f"{message[:1].upper()}{message[1:]}"
    return f"{message}: give one with `--api-key` or RYZ_API_KEY; `ryz keys create` makes one"


def _listed(model: dict[str, Any]) -> ListedModel:
    status = model.get("status") or {}
    return ListedModel(str(model["id"]), str(status.get("phase", "ready")), status.get("pinned") is True)
