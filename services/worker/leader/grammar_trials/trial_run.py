"""One trial, in a process of its own: it takes limits upon itself, compiles a grammar, and reports.

The kernel ends it at the limit of CPU time. An allocation beyond the limit of memory fails, which ends
llguidance with an abort, and Python with a MemoryError.
"""

import ctypes
import math
import os
import resource
import signal
from pathlib import Path
from typing import NoReturn

import msgspec

from services.worker.leader.grammar_trials.trial_messages import Trial, TrialResult, TrialSetup, frame_of
from services.worker.text.grammars.answer_grammar import AnswerForm, compile_answer
from services.worker.text.grammars.token_vocabulary import TokenVocabulary
from shared.errors import InvalidRequest

_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None)
_form = msgspec.msgpack.Decoder(AnswerForm)


def end_with_parent(parent_pid: int) -> bool:
    """Makes the kernel kill this process when its parent ends; False if that has happened already."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    return os.getppid() == parent_pid


def run_trial(
    trial: Trial, vocabulary: TokenVocabulary, setup: TrialSetup, parent_pid: int, report: int
) -> NoReturn:
    """Runs in a fork, and ends it.

    Args:
        report: Descriptor that gets the frame of a `TrialResult`.
    """
    status = 1
    try:
        too_large = frame_of(TrialResult(trial.number, "large"))  # while there is memory
        if end_with_parent(parent_pid):
            _take_limits(setup)
            try:
                verdict = frame_of(_verdict(trial, vocabulary, setup))
            except MemoryError:
                verdict = too_large
            os.write(report, verdict)
            status = 0
    finally:
        os._exit(status)  # nothing may return into the loop of the trial process


def _verdict(trial: Trial, vocabulary: TokenVocabulary, setup: TrialSetup) -> TrialResult:
    number = trial.number
    try:
        compile_answer(_form.decode(trial.form), vocabulary, setup.limits)
    except InvalidRequest as error:
        return TrialResult(number, "refused", error.message, error.data)
    except MemoryError:
        raise
    except BaseException:  # a panic of llguidance is no Exception
        return TrialResult(number, "unclear")
    return TrialResult(number, "passed")


def _take_limits(setup: TrialSetup) -> None:
    quiet = os.open(os.devnull, os.O_RDWR)
    for descriptor in range(3):  # llguidance writes parts of grammars to stderr when it aborts
        os.dup2(quiet, descriptor)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + setup.memory_bytes
    _lower(resource.RLIMIT_AS, most)
    _lower(resource.RLIMIT_CORE, 0)
    _lower(resource.RLIMIT_CPU, math.ceil(setup.cpu_s) + 1)  # should the timer not end it
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_PROF, setup.cpu_s)


def _lower(what: int, most: int) -> None:
    """Lowers a limit, which may be lower already."""
    _, hard = resource.getrlimit(what)
    least = most if hard == resource.RLIM_INFINITY else min(most, hard)
    resource.setrlimit(what, (least, hard))
