"""The process that services are forked from: `python -m cli.stack.forking.server FD PID MODULE...`.

It imports the modules once, which takes nearly all of the time of a service's start, and then forks services
on request. It runs nothing itself and so has a single thread: a fork copies only the calling thread.

A service becomes a child of the supervisor, not of this process, so that its end is the supervisor's to see
even if this process has died: it is forked twice, the process between ends at once, and the kernel gives
orphans to their nearest ancestor that asked for them (PR_SET_CHILD_SUBREAPER).

Nothing of `shared` may be imported here before the modules: the package `services` makes the imports that
come after its own find compiled modules.
"""

import ctypes
import gc
import importlib
import os
import signal
import socket
import sys
import time
from typing import NoReturn

import msgspec
import setproctitle

from cli.stack.forking.messages import MAX_PACKET_BYTES, ForkService, Imported, ServiceForked
from cli.stack.forking.shown_environment import show_environment

PR_SET_PDEATHSIG = 1
FIRST_PASSED = 3  # the number of a socket that is passed on, as in sd_listen_fds(3)
_ADOPTION_POLL_S = 0.0002
_MAX_DESCRIPTORS = 2
_REFUSED = 1


def main() -> None:
    """Serve the supervisor until it is gone; in a forked service, run it."""
    sock, supervisor, modules = socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2]), sys.argv[3:]
    _end_with(supervisor, signal.SIGKILL)
    # setproctitle finds the memory of the title at its first call, as long as the environment has not moved
    setproctitle.setproctitle(setproctitle.getproctitle())
    setproctitle.setthreadtitle("ryz-forks")
    gc.disable()  # a tenth of the time of the imports
    for module in modules:
        importlib.import_module(module)
    # objects that exist now are exempt from collection: it would write to their pages, which services share
    gc.freeze()
    gc.enable()
    if len(os.listdir("/proc/self/task")) != 1:
        sys.exit(
            "a module has started a thread, which a fork would lose; services start without this process"
        )
    sock.send(msgspec.msgpack.encode(Imported()))
    requests = msgspec.msgpack.Decoder(ForkService)
    while True:
        try:
            data, descriptors, _, _ = socket.recv_fds(sock, MAX_PACKET_BYTES, _MAX_DESCRIPTORS)
        except ConnectionResetError:
            return
        if not data:
            return
        request = requests.decode(data)
        between = _fork_twice(sock)
        if between:
            sock.close()
            _become_service(request, descriptors)
            while os.getppid() == between:
                time.sleep(_ADOPTION_POLL_S)
            _end_with(supervisor, signal.SIGTERM)
            _run_service(request.module)
        for descriptor in descriptors:
            os.close(descriptor)


def _fork_twice(sock: socket.socket) -> int:
    """Return 0, and in the new process the id of its parent, which ends at once."""
    between = os.fork()
    if between:
        os.waitpid(between, 0)
        return 0
    between = os.getpid()
    service = os.fork()
    if service:
        sock.send(msgspec.msgpack.encode(ServiceForked(service)))
        os._exit(0)
    return between


def _become_service(request: ForkService, descriptors: list[int]) -> None:
    """Give this process the log, environment, names and descriptors of the service."""
    os.setpgid(0, 0)
    if request.cores:
        os.sched_setaffinity(0, request.cores)
    log, *listeners = descriptors
    null = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((null, 0), (log, 1), (log, 2)):
        os.dup2(source, target)
    os.close(null)
    os.close(log)
    os.environ.clear()
    os.environ.update(request.environment)
    show_environment(request.environment)
    for variable in ("LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES"):  # of a socket that was the supervisor's
        os.environ.pop(variable, None)
    if request.listens:
        _pass_listener(listeners[0])
    sys.argv = [sys.modules[request.module].__file__ or request.module]
    setproctitle.setproctitle(request.command)
    setproctitle.setthreadtitle(request.name)


def _run_service(module: str) -> NoReturn:
    """Run the service, and end without taking the interpreter apart, which takes half a second with torch."""
    status = 1
    try:
        sys.modules[module].main()
        status = 0
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            status = end.code or 0
        else:
            print(end.code, file=sys.stderr)
    except BaseException:
        sys.excepthook(*sys.exc_info())
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def _pass_listener(listener: int) -> None:
    """Give the socket the number that services look for; what had the number moves away."""
    if listener != FIRST_PASSED:
        os.dup2(listener, FIRST_PASSED)
        os.close(listener)
    os.set_inheritable(FIRST_PASSED, False)
    os.environ.update(LISTEN_FDS="1", LISTEN_PID=str(os.getpid()))


def _end_with(supervisor: int, signum: int) -> None:
    """Have the kernel send the signal when the supervisor dies; end now if it has."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signum, 0, 0, 0)
    if os.getppid() != supervisor:
        sys.exit(_REFUSED)


if __name__ == "__main__":
    main()
