"""Runs nginx and Caddy with the configuration that docs/proxies.md shows."""

import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.kits.servers import free_port
from tests.kits.tls import Pair
from tests.kits.waiting import wait_for
from tools.docs.manual.command_blocks import ROOT, blocks

PAGE = "docs/proxies.md"
NAME, UPSTREAM = "llm.example.org", "127.0.0.1:8000"
_NGINX = """\
user root; daemon off; pid {folder}/nginx.pid; error_log {folder}/error.log;
events {{}}
http {{
access_log off;
client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy; fastcgi_temp_path {folder}/fastcgi;
uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;
{shown}
}}
"""


def shown(language: str) -> str:
    """The block of the page in that language."""
    (text,) = [one.text for one in blocks(PAGE, (ROOT / PAGE).read_text()) if one.language == language]
    return text


def swap(text: str, *pairs: tuple[str, str]) -> str:
    """Puts this run's words in place of the page's, each of which has to be there."""
    for old, new in pairs:
        assert old in text, f"{PAGE} has no {old!r} any more"
        text = text.replace(old, new)
    return text


def nginx(folder: Path, upstream: str, pair: Pair, port: int) -> list[str]:
    """Writes the configuration; returns the command."""
    text = swap(
        shown("nginx"),
        ("listen 443", f"listen 127.0.0.1:{port}"),
        (f"/etc/ssl/{NAME}.pem", pair.cert),
        (f"/etc/ssl/{NAME}.key", pair.key),
        (UPSTREAM, upstream),
        (NAME, "localhost"),
    )
    (folder / "nginx.conf").write_text(_NGINX.format(folder=folder, shown=text))
    return [
        shutil.which("nginx") or "nginx",
        "-e",
        str(folder / "error.log"),
        "-c",
        str(folder / "nginx.conf"),
    ]


def caddy(folder: Path, upstream: str, pair: Pair, port: int) -> list[str]:
    """Writes the configuration; returns the command. The certificate is given, not fetched."""
    site = f"https://localhost:{port} {{\n    tls {pair.cert} {pair.key}"
    text = swap(shown("caddy"), (f"{NAME} {{", site), (UPSTREAM, upstream))
    (folder / "Caddyfile").write_text(
        f"{{\n    admin off\n    auto_https disable_redirects\n    skip_install_trust\n"
        f"    storage file_system {folder}\n}}\n{text}"
    )
    return [shutil.which("caddy") or "caddy", "run", "--config", str(folder / "Caddyfile")]


PROXIES = {"nginx": nginx, "caddy": caddy}


@contextmanager
def proxy(program: str, folder: Path, upstream: str, pair: Pair) -> Iterator[str]:
    """Runs a proxy before an address; yields its own, `localhost:PORT`."""
    port = free_port()
    command = PROXIES[program](folder, upstream, pair, port)
    with (folder / "output.txt").open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, cwd=folder)
    try:

        def listens() -> bool:
            assert process.poll() is None, (folder / "output.txt").read_text()
            with socket.socket() as probe:
                return probe.connect_ex(("127.0.0.1", port)) == 0

        wait_for(listens, f"{program} listens")
        yield f"localhost:{port}"
    finally:
        process.terminate()
        process.wait()
