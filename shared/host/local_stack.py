"""Finds the broker of the stack that `ryz up` runs on this machine, from its state file.

Only a file of this user is used: it decides where prompts and passwords are sent, and in a directory that
others may write to, another user could have made it.
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
ADMIN_KEY_FILE = "admin.key"  # the first one, in its text
USUAL_BROKER = "nats://127.0.0.1:4222"


class ForeignFileError(Exception):
    """The file belongs to another user."""


def read_own(path: Path) -> str:
    """Returns the text of a file of this user.

    Raises:
        ForeignFileError: Another user owns it, it is a link, or a link of another user leads to it.
        OSError: It cannot be read.
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
    """Returns `RYZ_NATS_URL`, else the broker of the stack that runs here, else the usual address.

    Args:
        state_dir: Where `ryz up` keeps its state.

    Raises:
        InvalidRequest: The state file there is another user's, or broken.
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
