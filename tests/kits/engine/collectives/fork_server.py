"""A fork server whose ranks run the checks of `rank.py`, which share one loaded torch."""

import socket
from collections.abc import Mapping

from services.worker.engine.rank import fork_server, rank_process
from services.worker.engine.rank.process import end_process
from tests.kits.engine.collectives.rank import run_checks


def serve_checks(sock: socket.socket, _: float, descriptors: Mapping[int, int], **_more: object) -> int:
    """Runs the checks instead of a rank."""
    run_checks(sock, descriptors)
    return 0


if __name__ == "__main__":
    rank_process.serve = serve_checks  # type: ignore[assignment]
    end_process(fork_server.main())
