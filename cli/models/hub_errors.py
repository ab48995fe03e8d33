"""Says in one sentence, with the remedy, why the Hugging Face Hub gave no model."""

import logging
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from cli.console import fail
from cli.models.names import HubName
from cli.models.store import in_bytes

_DISK_ERRORS = {5, 13, 27, 28, 30, 122}  # EIO, EACCES, EFBIG, ENOSPC, EROFS, EDQUOT
_AGAIN = {429, 503}  # statuses of a server that wants to be asked later
_RESET = re.compile(r";t=(\d+)")  # of the header `RateLimit`: seconds until there is a new allowance
LONGEST_PAUSE_S, MOST_PAUSES = 300, 10  # that a pull waits when the Hub asks it to
_CLIENTS = {"httpx", "httpx2", "httpcore", "httpcore2", "requests"}  # by versions of the library


def hub_endpoint() -> str | None:
    """Return the Hub's address if it is another one than the public Hub."""
    return os.environ.get("HF_ENDPOINT") or None


@contextmanager
def hub_sentences(name: HubName, fetched: Callable[[], int] = int) -> Iterator[None]:
    """Turn the library's errors into one sentence with the remedy."""
    from huggingface_hub import errors  # noqa: PLC0415 (slow to import)
    from huggingface_hub import logging as hub_logging  # noqa: PLC0415

    hub_logging.set_verbosity(logging.ERROR)
    site = hub_endpoint() or "https://huggingface.co"
    again = f"`ryz models pull {name}`"
    try:
        yield
    except errors.GatedRepoError:
        fail(
            f"{name} is behind terms: accept them at {site}/{name.repository}, and give a token as HF_TOKEN."
        )
    except errors.RevisionNotFoundError:
        fail(f"{name.repository} has no revision {name.revision}.", 2)
    except errors.RepositoryNotFoundError:
        fail(f"The Hub has no model {name.repository}, or it is private: then give a token as HF_TOKEN.", 2)
    except errors.OfflineModeIsEnabled:
        fail("HF_HUB_OFFLINE is set, so nothing is fetched from the Hub: unset it.", 2)
    except errors.HfHubHTTPError as error:
        status = error.response.status_code if error.response is not None else "an error"
        if status in {401, 403}:
            fail(f"{site} refused {name} with status {status}: check the token in HF_TOKEN.")
        if status == 429:
            fail(
                f"{site} allows no more so soon (429). {again} goes on later; with HF_TOKEN more is allowed."
            )
        fail(f"{site} answers with {status} for {name}; {again} tries again.")
    except Exception as error:
        if number := _disk_error(error):
            fail(f"{name} cannot be written: {os.strerror(number)}. Make room; {again} goes on.")
        if not broke_off(error):
            raise
        if fetched():
            after = f"after {in_bytes(fetched())} ({_innermost(error)})"
            fail(f"{name} broke off {after}. {again} goes on from there.")
        fail(f"{site} cannot be reached ({_innermost(error)}). {again} tries again.")


def pause_asked(error: BaseException) -> float | None:
    """Return the seconds after which the Hub wants to be asked again; None if it did not say, or not soon."""
    answer = getattr(error, "response", None)
    if answer is None or answer.status_code not in _AGAIN:
        return None
    limit = _RESET.search(answer.headers.get("RateLimit", ""))
    pause_s = answer.headers.get("Retry-After", "") or (limit[1] if limit else "")
    return float(pause_s) if pause_s.isdecimal() and int(pause_s) <= LONGEST_PAUSE_S else None


def broke_off(error: BaseException) -> bool:
    """Return whether the network is to blame, or what the Hub sent."""
    client = type(error).__module__.partition(".")[0] in _CLIENTS
    return (client or isinstance(error, OSError | ValueError)) and not _disk_error(error)


def _disk_error(error: BaseException) -> int:
    number = error.errno if isinstance(error, OSError) else None
    return number if number in _DISK_ERRORS else 0


def _innermost(error: BaseException) -> str:
    while (inner := error.__cause__ or error.__context__) is not None:
        error = inner
    return str(getattr(error, "strerror", "") or error) or type(error).__name__
