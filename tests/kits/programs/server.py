"""The process that programs are forked from: `python -m tests.kits.programs.server FD MODULE...`.

It imports what services and commands import, once for all tests of a run. It uses compiled modules where
there are some, as services do, since the name of a service is among its arguments
(`shared/compiled_modules.py`).

A connection stands for one program. When it breaks, its test is gone, and so is the program.
"""

import ctypes
import gc
import importlib
import os
import pkgutil
import selectors
import signal
import socket
import sys
import time
from contextlib import suppress
from typing import NoReturn

import msgspec
import setproctitle

from tests.kits.programs.messages import MAX_PACKET_BYTES, Ended, Run, Started

PR_SET_PDEATHSIG = 1
STANDARD = 3  # descriptors that come with a request
_CRASHED = 1
_HANDLED = (signal.SIGCHLD, signal.SIGTERM)


class Server:
    """Forks programs and reports their ends. It has a single thread: a fork copies only the calling one."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self._selector = selectors.DefaultSelector()
        self._programs: dict[int, socket.socket] = {}
        self._requests = msgspec.msgpack.Decoder(Run)
        self._wakes, self._waking = os.pipe()

    def serve(self) -> NoReturn:
        """Serve until SIGTERM, which comes when the process that started this one has ended, too."""
        signal.signal(signal.SIGTERM, self._end)
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
        os.set_blocking(self._waking, False)
        os.set_blocking(self._wakes, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._waking, warn_on_full_buffer=False)
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._selector.register(self._wakes, selectors.EVENT_READ)
        while True:
            for key, _ in self._selector.select():
                if key.fileobj is self._listener:
                    connection, _ = self._listener.accept()
                    self._selector.register(connection, selectors.EVENT_READ)
                elif key.fileobj == self._wakes:
                    with suppress(BlockingIOError):
                        os.read(self._wakes, 4096)
                    self._collect()
                else:
                    assert isinstance(key.fileobj, socket.socket)
                    self._read(key.fileobj)

    def _read(self, connection: socket.socket) -> None:
        try:
            data, descriptors, _, _ = socket.recv_fds(connection, MAX_PACKET_BYTES, STANDARD)
        except ConnectionError:
            data, descriptors = b"", []
        if data:
            self._fork(connection, self._requests.decode(data), descriptors)
            return
        self._selector.unregister(connection)
        connection.close()
        for pid, owner in self._programs.items():
            if owner is connection:
                for signum in (signal.SIGTERM, signal.SIGCONT):
                    os.kill(pid, signum)

    def _fork(self, connection: socket.socket, request: Run, descriptors: list[int]) -> None:
        # a program whose test is gone at once must not end the others, as this process does at SIGTERM
        signal.pthread_sigmask(signal.SIG_BLOCK, _HANDLED)
        pid = os.fork()
        if pid == 0:
            signal.set_wakeup_fd(-1)
            for signum in _HANDLED:
                signal.signal(signum, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _HANDLED)
            for key in list(self._selector.get_map().values()):
                os.close(key.fd)
            os.close(self._waking)
            self._selector.close()
            _run(request, descriptors)
        self._programs[pid] = connection
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _HANDLED)
        for descriptor in descriptors:
            os.close(descriptor)
        handle = os.pidfd_open(pid)
        with suppress(ConnectionError):  # the test is gone; the next read says so
            socket.send_fds(connection, [msgspec.msgpack.encode(Started(pid))], [handle])
        os.close(handle)

    def _end(self, *_: object) -> NoReturn:
        for pid in self._programs:
            with suppress(ProcessLookupError):  # the signal came while its end was reported
                os.kill(pid, signal.SIGKILL)
        os._exit(0)

    def _collect(self) -> None:
        """Report the programs that have ended."""
        while self._programs:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            connection = self._programs.pop(pid)
            with suppress(OSError):  # closed meanwhile, by this process or by the test
                connection.send(msgspec.msgpack.encode(Ended(os.waitstatus_to_exitcode(status))))


def _run(request: Run, descriptors: list[int]) -> NoReturn:
    """Become the program, in a new process."""
    status = _CRASHED
    try:
        os.setsid()
        for target, descriptor in enumerate(descriptors):
            os.dup2(descriptor, target)
            os.close(descriptor)
        os.chdir(request.folder)
        os.environ.clear()
        os.environ.update(request.environment)
        time.tzset()
        os.nice(request.niceness - os.nice(0))
        setproctitle.setproctitle(" ".join(request.command))
        setproctitle.setthreadtitle("python")
        module = sys.modules.get(f"{request.module}.__main__", sys.modules[request.module])
        sys.argv = [module.__file__ or request.module, *request.arguments]
        signal.signal(signal.SIGINT, signal.default_int_handler)
        status = module.main() or 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
        if end.code is not None and not isinstance(end.code, int):
            print(end.code, file=sys.stderr)
    except BaseException:
        sys.excepthook(*sys.exc_info())
    with suppress(OSError, ValueError):  # ValueError: the program has closed it
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(status)


def main() -> None:
    """Import everything, and serve."""
    listener, modules = socket.socket(fileno=int(sys.argv[1])), sys.argv[2:]
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # setproctitle finds the memory of the title at its first call, as long as the environment has not moved
    setproctitle.setproctitle(setproctitle.getproctitle())
    gc.disable()
    for name in modules:
        module = importlib.import_module(name)
        for found in pkgutil.walk_packages(getattr(module, "__path__", ()), f"{name}."):
            importlib.import_module(found.name)
    gc.freeze()
    gc.enable()
    if len(os.listdir("/proc/self/task")) != 1:
        sys.exit("a module has started a thread, which a fork would lose")
    Server(listener).serve()


if __name__ == "__main__":
    main()
