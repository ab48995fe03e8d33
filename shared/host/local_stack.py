"""The stack that `ryz up` runs on this machine: where its broker is, as its state file tells.

Only this user's file is believed. What stands in it decides where prompts and passwords are sent, and in a
directory that others may write to it could be anyone's.
"""

import errno
import json
import os
from pathlib import Path

from shared.errors import InvalidRequest
from shared.host.own_paths import ForeignLinkError, walk

STATE_DIR = Path(".ryz")
STATE_FILE = "up.json"
USERS_FILE = "bus-users.json"
USUAL_BROKER = "nats://127.0.0.1:4222"


class ForeignFileError(Exception):
    """The file is another user's, who could have written anything into it."""


def read_own(path: Path) -> str:
    """The text of a file that this user wrote.

    Raises:
        ForeignFileError: another user owns it, it is a link, or one of another user leads to it.
        OSError: it cannot be read.
    """
    try:
        opened = os.open(walk(path.parent) / path.name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        if error.errno == errno.ELOOP or isinstance(error, ForeignLinkError):
            raise ForeignFileError from error
        raise
    with os.fdopen(opened) as file:
        if os.fstat(opened).st_uid != os.geteuid():
            raise ForeignFileError
        return file.read()


def broker_url(state_dir: Path = STATE_DIR) -> str:
    """`RYZ_NATS_URL`, else the broker of the stack that is up here, else the usual port.

    Args:
        state_dir: where `ryz up` keeps its state.

    Raises:
        InvalidRequest: the state file there is another user's, or broken.
    """
    if url := os.environ.get("RYZ_NATS_URL"):
        return url
    file = state_dir / STATE_FILE
    try:
        return str(json.loads(read_own(file))["nats_url"])
    except FileNotFoundError:
        return USUAL_BROKER
    except (ForeignFileError, OSError, ValueError, KeyError, TypeError) as error:
        raise InvalidRequest(
            f"{file} is not what `ryz up` wrote for this user; set RYZ_NATS_URL", param="nats_url"
        ) from error
