"""The systemd unit of a start, and the word to systemd that it is ready."""

import getpass
import os
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from cli.console import fail

ENVIRONMENT = "/etc/ryzanstein.env"
_UNIT = """\
# /etc/systemd/system/ryzanstein.service
[Unit]
Description=Ryzanstein
Wants=network-online.target
After=network-online.target

[Service]
Type=notify
User={user}
WorkingDirectory={folder}
EnvironmentFile=-{environment}
ExecStart={command}
# a model may be fetched first
TimeoutStartSec=infinity
# requests end, then what is left
TimeoutStopSec=60
KillMode=mixed
Restart=on-failure
RestartSec=5
# a rank that the kernel kills for memory is started again by its group
OOMPolicy=continue
LimitNOFILE=65536
NoNewPrivileges=yes
UMask=0077

[Install]
WantedBy=multi-user.target
"""


def unit_text(arguments: Sequence[str], environ: Mapping[str, str]) -> str:
    """Return the unit that runs `ryz` with these arguments, in this folder and as this user.

    Args:
        arguments: Those of this command; `--print-unit` is left out.
        environ: Its variables; names of settings among them are listed in a comment, values may be secrets.

    Raises:
        CommandError: There is no `ryz` beside this Python.
    """
    program = Path(sys.executable).parent / "ryz"
    if not program.exists():
        fail(f"A unit needs the program {program}, which is not there: install the package first.")
    words = [str(program), *(word for word in arguments if word != "--print-unit")]
    text = _UNIT.format(
        user=getpass.getuser(),
        folder=_escaped(str(Path.cwd())),
        environment=ENVIRONMENT,
        command=" ".join(map(_quoted, words)),
    )
    names = sorted(name for name in environ if name.startswith("RYZ_"))
    note = f"# set here, and to be written into {ENVIRONMENT}: {' '.join(names)}\n" if names else ""
    return note + text


def _escaped(text: str) -> str:
    return text.replace("%", "%%")


def _quoted(word: str) -> str:
    """Quote a word of ExecStart, where `%` and `$` have a meaning."""
    text = _escaped(word).replace("\\", "\\\\").replace('"', '\\"').replace("$", "$$")
    return f'"{text}"' if set(text) & set(" \t\\'\";") or not text else text


def notify_ready(environ: Mapping[str, str] = os.environ) -> None:
    """Tell systemd, if it started this process, that the stack is ready (sd_notify(3))."""
    if address := environ.get("NOTIFY_SOCKET", ""):
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notifier:
            notifier.sendto(b"READY=1", "\0" + address[1:] if address.startswith("@") else address)
