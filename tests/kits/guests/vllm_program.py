"""vLLM's own server in a process of its own, by the interpreter of an environment that has vLLM.

    python vllm_program.py MODEL_DIR --context 2048 --parallel 8

Prints its port when it serves the model as `demo`. Its engine is a process of its own in the same process
group. It imports nothing of ours.
"""

import argparse
import os
import runpy
import socket
import sys
import threading
import time
import urllib.request

_MODULE = "vllm.entrypoints.openai.api_server"
_EVERY_S = 0.2


def free_port() -> int:
    """Returns a port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def announce(port: int, stdout: int) -> None:
    """Writes the port when the server answers; vLLM's own output goes elsewhere."""
    while True:
        time.sleep(_EVERY_S)
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=1.0):
                break
        except OSError:
            continue
    os.write(stdout, f"{port}\n".encode())


def main() -> None:
    """Reads the command line, and serves until the process is ended."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--parallel", type=int, default=8, help="sequences that are computed at once")
    parser.add_argument("--context", type=int, default=2048, help="tokens of each of them")
    arguments = parser.parse_args()
    port, stdout = free_port(), os.dup(1)
    os.dup2(2, 1)
    threading.Thread(target=announce, args=(port, stdout), daemon=True).start()
    sys.argv = [
        _MODULE, "--model", arguments.model, "--served-model-name", "demo", "--host", "127.0.0.1",
        "--port", str(port), "--max-model-len", str(arguments.context),
        "--max-num-seqs", str(arguments.parallel), "--enforce-eager",
    ]  # fmt: skip
    runpy.run_module(_MODULE, run_name="__main__")


if __name__ == "__main__":
    main()
