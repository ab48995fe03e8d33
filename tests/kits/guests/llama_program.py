"""llama.cpp's server in a process of its own, by the wheel `xllamacpp`, whose interpreter runs this file.

    python llama_program.py MODEL.gguf --parallel 4 --context 2048 --threads 2

Prints its port when it has loaded the model, and ends with the process that started it. It imports nothing of
ours.
"""

import argparse
import ctypes
import signal

import xllamacpp

_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Reads the command line, and serves until the process is ended."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--parallel", type=int, default=4, help="sequences that are computed at once")
    parser.add_argument("--context", type=int, default=2048, help="tokens of each of them")
    parser.add_argument("--threads", type=int, default=0, help="0: as llama.cpp chooses")
    arguments = parser.parse_args()
    options = xllamacpp.CommonParams()
    options.model.path = arguments.model
    options.model_alias = {"demo"}
    options.hostnames = ["127.0.0.1"]
    options.port = arguments.port
    options.n_parallel = arguments.parallel
    options.n_ctx = arguments.context * arguments.parallel
    options.n_threads_http = arguments.parallel + 8
    options.endpoint_metrics = True
    options.warmup = False
    if arguments.threads:
        options.cpuparams.n_threads = options.cpuparams_batch.n_threads = arguments.threads
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    server = xllamacpp.Server(options)
    print(server.listening_address.rpartition(":")[2], flush=True)
    signal.sigwait({signal.SIGTERM, signal.SIGINT})


if __name__ == "__main__":
    main()
