"""An HTTP server of files in memory that knows ranges, and can cut, stall or refuse an answer."""

import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self


@dataclass(slots=True)
class Answer:
    """What a path gives: a body that may be read in ranges, or a redirection or an error by its status."""

    body: bytes = b""
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Asked:
    """A request as it came."""

    method: str
    path: str
    range: str
    token: str


class FileServer:
    """Serves `answers` on a free port of 127.0.0.1.

    Attributes:
        answers: By path.
        cut_at: By path, how many bytes of its content are sent in all before connections are cut, once.
        always_cut: Paths whose connections are cut there each time.
        stalls: Paths whose answers stop there until the server ends, instead of being cut.
        asked: All requests.
        refusals: By path, answers that are given once each, in turn, before its own.
        whole: Paths whose content is sent whole, whatever range is asked for.
    """

    def __init__(self) -> None:
        self.answers: dict[str, Answer] = {}
        self.cut_at: dict[str, int] = {}
        self.always_cut: set[str] = set()
        self.stalls: set[str] = set()
        self.asked: list[Asked] = []
        self.refusals: dict[str, list[Answer]] = {}
        self.whole: set[str] = set()
        self.stalling = threading.Event()
        self.ended = threading.Event()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.ended.set()
        self._server.shutdown()
        self._server.server_close()

    def ranges(self, path: str) -> list[str]:
        """The ranges in which that path's content was asked for; empty for the whole."""
        return [one.range for one in self.asked if one.path == path and one.method == "GET"]

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        files = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_HEAD(self) -> None:
                self._answer(with_body=False)

            def do_GET(self) -> None:
                self._answer(with_body=True)

            def do_POST(self) -> None:
                self.rfile.read(int(self.headers.get("Content-Length", 0)))
                self._answer(with_body=True)

            def log_message(self, format: str, *args: Any) -> None:
                """Tests read `asked`."""

            def _answer(self, *, with_body: bool) -> None:
                path, wanted = self.path.partition("?")[0], self.headers.get("Range", "")
                files.asked.append(Asked(self.command, path, wanted, self.headers.get("Authorization", "")))
                answer = files.answers.get(path, Answer(status=404))
                if files.refusals.get(path):
                    answer = files.refusals[path].pop(0)
                if path in files.whole:
                    wanted = ""
                begin = int(wanted.removeprefix("bytes=").partition("-")[0]) if wanted else 0
                if wanted and answer.status == 200 and begin >= len(answer.body):
                    answer = Answer(status=416, headers={"Content-Range": f"bytes */{len(answer.body)}"})
                    wanted = ""
                body = answer.body[begin if wanted else 0 :]
                self.send_response(206 if wanted and answer.status == 200 else answer.status)
                headers = {"Content-Length": str(len(body)), "Accept-Ranges": "bytes"} | answer.headers
                if wanted:
                    headers["Content-Range"] = f"bytes {begin}-{len(answer.body) - 1}/{len(answer.body)}"
                for key, value in headers.items():
                    self.send_header(key, value)
                self.end_headers()
                if not with_body:
                    return
                most = files.cut_at.get(path)
                if most is None or begin + len(body) <= most:
                    self.wfile.write(body)
                    return
                self.wfile.write(body[: max(0, most - begin)])
                self.wfile.flush()
                self.close_connection = True
                if path in files.stalls:
                    files.stalling.set()
                    files.ended.wait(30)
                elif path not in files.always_cut:
                    del files.cut_at[path]

        return Handler
