"""`make audit` against a local vulnerability service: findings, no findings and no answer end differently."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from deploy import audit

KNOWN: dict[str, Any] = {
    "id": "GHSA-xxxx-yyyy-zzzz",
    "modified": "2026-01-01T00:00:00Z",
    "published": "2026-01-01T00:00:00Z",
    "aliases": ["CVE-2026-0001"],
    "summary": "bad",
    "affected": [
        {
            "package": {"ecosystem": "PyPI", "name": "one"},
            "ranges": [{"type": "ECOSYSTEM", "events": [{"introduced": "0"}, {"fixed": "1.1"}]}],
        }
    ],
}


class Service(ThreadingHTTPServer):
    """Answers as api.osv.dev does, with the HTTP status `status`."""

    status = 200
    known: dict[str, Any]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/v1/query"


class Handler(BaseHTTPRequestHandler):
    server: Service

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        known = self.server.known.get(asked["package"]["name"])
        body = json.dumps({"vulns": [known]} if known else {}).encode()
        self.send_response(self.server.status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Suppresses the request log."""


@pytest.fixture
def service() -> Iterator[Service]:
    server = Service(("127.0.0.1", 0), Handler)
    server.known = {}
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def constraints(tmp_path: Path) -> Path:
    file = tmp_path / "constraints.txt"
    file.write_text("# two==of them\none==1.0\ntwo==2.0\n")
    return file


def test_none_known(service: Service, constraints: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert audit.main([f"--osv-url={service.url}"], constraints) == 0
    assert capsys.readouterr().out == "2 pinned packages, 0 known vulnerabilities\n"


def test_a_known_one_fails_and_is_reported(
    service: Service, constraints: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    service.known["one"] = KNOWN
    assert audit.main([f"--osv-url={service.url}"], constraints) == audit.FOUND
    out = capsys.readouterr().out
    assert "one 1.0: " in out
    assert "CVE-2026-0001" in out
    assert "fixed in 1.1" in out
    assert "2 pinned packages, 1 known vulnerabilities" in out


@pytest.mark.parametrize("status", [500, 404])
def test_a_service_in_trouble_is_no_clean_bill(
    service: Service, constraints: Path, status: int, capsys: pytest.CaptureFixture[str]
) -> None:
    service.status = status
    assert audit.main([f"--osv-url={service.url}"], constraints) == audit.NOT_DONE
    said = capsys.readouterr()
    assert "THE AUDIT DID NOT HAPPEN" in said.err
    assert "0 known" not in said.out


def test_no_service_is_no_clean_bill(constraints: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert audit.main(["--osv-url=http://127.0.0.1:9/v1/query"], constraints) == audit.NOT_DONE
    assert "THE AUDIT DID NOT HAPPEN" in capsys.readouterr().err


def test_a_skipped_package_is_no_clean_bill() -> None:
    with pytest.raises(ValueError, match="was skipped"):
        audit.report('{"dependencies": [{"name": "one", "skip_reason": "not on PyPI"}], "fixes": []}')


def test_every_pinned_package_is_asked_about(
    service: Service, constraints: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    constraints.write_text("one==1.0\ntwo==2.0 ; python_version < '3'\n")  # `two` is dropped by its marker
    assert audit.main([f"--osv-url={service.url}"], constraints) == audit.NOT_DONE
    assert "2 packages are pinned" in capsys.readouterr().err
