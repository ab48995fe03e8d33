"""A rank on another host than its leader: `python -P -m services.worker.engine --join HOST:PORT --model DIR`.

Connects to the leader, proves that it holds RYZ_RANK_TOKEN, and forks a rank that serves as long as the
connection lasts. Then it connects again, until it is stopped, so a restarted leader gets its ranks back.
Torch is imported once. The leader decides which rank this is and how it computes.
"""

import argparse
import dataclasses
import gc
import os
import signal
import socket
import sys
import time
from importlib.metadata import version
from pathlib import Path
from types import FrameType
from typing import NoReturn

import msgspec
import structlog

from services.worker.engine.rank.process import (
    bind_to_parent,
    end_process,
    name_process,
    name_rank_lines,
    write_rank_lines,
)
from services.worker.rank_protocol.rank_messages import (
    HEADER_BYTES,
    MAX_FRAME_BYTES,
    FrameKind,
    FrameReader,
    RankConfig,
    RankFailed,
    frame_length,
    pack_frame,
)
from services.worker.rank_protocol.starting.join_messages import (
    MIN_TOKEN_LENGTH,
    NONCE_BYTES,
    Challenge,
    Hello,
    Welcome,
    keep_alive,
    prove,
    proven,
    split_address,
)

log = structlog.get_logger(__name__)
_CONNECT_S = 10.0
_PAUSE_S = 1.0  # between two attempts to connect
REFUSED = 2


class JoinError(Exception):
    """The leader refuses this rank, and would refuse it again."""


def main(arguments: list[str]) -> int:
    """Runs until it is stopped or refused; returns the exit code."""
    options = _parse(arguments)
    token = os.environ.get("RYZ_RANK_TOKEN", "")
    if len(token) < MIN_TOKEN_LENGTH:
        return _refuse(
            f"RYZ_RANK_TOKEN must be the leader's secret, of at least {MIN_TOKEN_LENGTH} characters"
        )
    try:
        address = split_address(options.join)
    except ValueError as error:
        return _refuse(f"--join: {error}")
    # the model is checked before there is a leader; the import takes a second
    from services.worker.engine.checkpoint.tensor_table import stored_tensors  # noqa: PLC0415
    from services.worker.engine.config.json_fields import ModelError  # noqa: PLC0415
    from services.worker.engine.config.read_config import read_config  # noqa: PLC0415
    from services.worker.engine.rank.rank_process import serve  # noqa: F401, PLC0415 (loads torch before the forks)

    try:
        read_config(options.model)
        stored_tensors(options.model)
    except ModelError as error:
        return _refuse(str(error))
    name_process("ryz-join")
    write_rank_lines("join")
    for signum in (signal.SIGTERM, signal.SIGINT):
        signal.signal(signum, _stop)
    gc.freeze()
    return _join_until_refused(address, token, options)


def _join_until_refused(address: tuple[str, int], token: str, options: argparse.Namespace) -> int:
    announced = False
    while True:
        try:
            with connect(address, token) as sock:
                log.info("joined the leader", leader=options.join)
                announced = False
                code = _run_rank(sock, options)
            log.warning("the leader is gone, or gave this rank up", leader=options.join)
            if code == REFUSED:
                return code  # the rank has said why
        except JoinError as error:
            log.error("the leader refuses this rank", leader=options.join, why=str(error))
            return REFUSED
        except OSError as error:
            if not announced:
                announced = True
                log.warning("no leader yet", leader=options.join, error=str(error), remedy="it is tried on")
        if options.once:
            return 1
        time.sleep(_PAUSE_S)


def connect(address: tuple[str, int], token: str) -> socket.socket:
    """Connects to the leader; each side proves to the other that it holds the token.

    Raises:
        JoinError: The leader refused, or does not hold the token.
        OSError: The leader cannot be reached.
    """
    sock = socket.create_connection(address, _CONNECT_S)
    try:
        kind, body = _read_frame(sock)
        if kind is not FrameKind.CHALLENGE:
            raise JoinError("what answers there is no leader")
        challenge = msgspec.msgpack.decode(body, type=Challenge).nonce
        nonce = os.urandom(NONCE_BYTES)
        proof = prove(token, "rank", challenge, nonce)
        hello = Hello(nonce=nonce, proof=proof, version=version("ryzanstein"))
        sock.sendall(pack_frame(FrameKind.HELLO, hello))
        kind, body = _read_frame(sock)
        if kind is FrameKind.FAILED:
            raise JoinError(msgspec.msgpack.decode(body, type=RankFailed).message)
        if kind is not FrameKind.WELCOME or not proven(
            token, "leader", challenge, nonce, msgspec.msgpack.decode(body, type=Welcome).proof
        ):
            raise JoinError("it does not hold the same RYZ_RANK_TOKEN")
    except (ValueError, msgspec.MsgspecError) as error:
        sock.close()
        raise JoinError("what answers there is no leader") from error
    except BaseException:
        sock.close()
        raise
    keep_alive(sock)
    sock.settimeout(None)
    return sock


def _run_rank(sock: socket.socket, options: argparse.Namespace) -> int:
    """Forks the rank and waits for its end."""
    own_pid = os.getpid()
    pid = os.fork()
    if pid == 0:
        _become_rank(sock, options, own_pid)
    _, status = os.waitpid(pid, 0)
    return os.waitstatus_to_exitcode(status)


def _become_rank(sock: socket.socket, options: argparse.Namespace, parent: int) -> NoReturn:
    from services.worker.engine.rank.rank_process import serve  # noqa: PLC0415

    address = sock.getsockname()[0]

    def adapt(config: RankConfig) -> RankConfig:
        name_rank_lines(config)
        run = dataclasses.replace(
            config.run,
            model=str(options.model.resolve()),
            threads=options.threads or os.cpu_count() or 1,
            gloo_interface=options.interface,
        )
        return msgspec.structs.replace(config, run=run, address=address)

    status = 1
    try:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        if bind_to_parent(parent):
            name_process("ryz-rank")
            write_rank_lines("rank")
            status = serve(sock, time.monotonic(), adapt=adapt, log_errors=True)
    finally:
        end_process(status)


def _read_frame(sock: socket.socket) -> tuple[FrameKind, bytes]:
    """Reads exactly one frame; the bytes after it are for the rank."""
    header = _read(sock, HEADER_BYTES)
    length = frame_length(header)
    if length > MAX_FRAME_BYTES:
        raise ValueError("a frame beyond all bounds")
    ((kind, body),) = FrameReader().feed(header + _read(sock, length))
    return kind, body


def _read(sock: socket.socket, count: int) -> bytes:
    received = bytearray()
    while len(received) < count:
        data = sock.recv(count - len(received))
        if not data:
            raise ConnectionError("it closed the connection")
        received += data
    return bytes(received)


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m services.worker.engine",
        description="Lends this host to a group whose leader is on another one. RYZ_RANK_TOKEN is the secret "
        "that the leader has as well.",
    )
    parser.add_argument("--join", required=True, metavar="HOST:PORT", help="the leader's RYZ_RANK_LISTEN")
    parser.add_argument("--model", required=True, type=Path, metavar="DIR", help="the leader's model, here")
    parser.add_argument("--threads", type=int, default=0, help="0: as many as there are cores")
    parser.add_argument("--interface", default="", help="for Gloo; default: the one that reaches the leader")
    parser.add_argument("--once", action="store_true", help="end with the first connection")
    return parser.parse_args(arguments)


def _refuse(sentence: str) -> int:
    print(sentence, file=sys.stderr)
    return REFUSED


def _stop(signum: int, frame: FrameType | None) -> NoReturn:
    end_process(0)  # the kernel ends the rank
