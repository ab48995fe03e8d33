"""Runs before all other containers: makes passwords, gives each service its own, checks keys, owns volumes.

    docker compose run --rm init rotate       new passwords, but for those in `.env`; restart services then
    docker compose run --rm init show NAME    prints one, such as RYZ_GRAFANA_PASSWORD

All passwords are in one file of the volume `secrets`, which root alone reads. Beside it each service has a
file of its own: only members of its group read it, and each container is in one such group. A password in the
environment (from `.env`) is taken instead of a made one. Needs CAP_CHOWN and no other capability.
"""

import os
import re
import secrets
import shlex
import sys
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path

from shared.bus.accounts import ACCOUNTS as BUS
from shared.redis_accounts import ACCOUNTS as REDIS

SECRETS, VOLUMES = Path("/run/ryzanstein"), Path("/volumes")
ALL = "all.env"  # of root alone
SERVICE_USER = 10001
GROUPS = {
    "nats": 11001, "redis": 11002, "redis-kv": 11003, "kvstate": 11004, "router": 11005, "worker": 11006,
    "gateway": 11007, "cli": 11008, "grafana": 11009,
}  # fmt: skip
GRAFANA, SESSION_KEY = "RYZ_GRAFANA_PASSWORD", "RYZ_SESSION_KEY"
GATEWAY = BUS["gateway"].password_variable
LETTERS, ALPHABET = "abcdefghijkmnopqrstuvwxyz", "abcdefghijkmnopqrstuvwxyzABCDEFGHJKLMNPQRSTUVWXYZ23456789"
LENGTH = 40  # characters of 57: 230 bits
PASSWORD = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")
MIN_PASSWORD = MIN_API_KEY = 8  # characters
MIN_SESSION_KEY = 16
REMEDY = "; write another one, or delete its line in .env, and one is made"


def names() -> list[str]:
    """The variables of all passwords."""
    of_bus, of_redis = ([one.password_variable for one in accounts.values()] for accounts in (BUS, REDIS))
    return [*of_bus, *of_redis, GRAFANA]


def new_password() -> str:
    """Return letters and digits, which a URL takes as they are; NATS takes a leading digit for a number."""
    return secrets.choice(LETTERS) + "".join(secrets.choice(ALPHABET) for _ in range(LENGTH - 1))


def problems(given: Mapping[str, str]) -> list[str]:
    """What is wrong with passwords and keys, one sentence each; a value is never repeated.

    Passwords stand in URLs and in the broker's configuration without quotes. Services refuse short keys.
    """
    found = []
    for name in names():
        value = given.get(name, "")
        if not value:
            continue
        if value[0].isdigit():
            found.append(f"{name} begins with a digit, so the broker would take it for a number{REMEDY}")
        elif not PASSWORD.fullmatch(value):
            wanted = "letters, digits, - and _, the first one a letter"
            found.append(f"{name} has characters that a URL does not take; it needs {wanted}{REMEDY}")
        elif len(value) < MIN_PASSWORD:
            found.append(f"{name} has fewer than {MIN_PASSWORD} characters{REMEDY}")
    if 0 < len(given.get(SESSION_KEY, "")) < MIN_SESSION_KEY:
        found.append(f"{SESSION_KEY} has fewer than {MIN_SESSION_KEY} characters; write more, or none")
    for index, entry in enumerate(filter(None, map(str.strip, given.get("RYZ_API_KEYS", "").split(","))), 1):
        if len(entry.rpartition(":")[0]) < MIN_API_KEY:
            wanted = f"`key:tenant` with a key of {MIN_API_KEY} characters or more"
            found.append(f"RYZ_API_KEYS: entry {index} is no {wanted}")
    return found


def settled(given: Mapping[str, str], kept: Mapping[str, str], *, rotate: bool = False) -> dict[str, str]:
    """Return all passwords: those that were given, else the kept ones, else new ones.

    The key of session ids is no password of a user. It stays, or sessions would be lost; where the gateway's
    password was given, that has always been the key.
    """
    old = {} if rotate else kept
    values = {name: given.get(name) or old.get(name) or new_password() for name in names()}
    key = given.get(SESSION_KEY) or kept.get(SESSION_KEY) or ("" if given.get(GATEWAY) else new_password())
    return values | {SESSION_KEY: key}


def files_of(values: Mapping[str, str]) -> dict[str, str]:
    """Return the file of each service: shell lines for `start.sh`; Grafana reads its password itself."""
    buses = {user: f"nats://{user}:{values[one.password_variable]}@nats:4222" for user, one in BUS.items()}
    stores = {
        user: f"redis://{user}:{values[one.password_variable]}@{{}}:6379/0" for user, one in REDIS.items()
    }
    lines: dict[str, dict[str, str]] = {
        "nats": {one.password_variable: values[one.password_variable] for one in BUS.values()},
        "redis": {REDIS["kvstate"].password_variable: values[REDIS["kvstate"].password_variable]},
        "redis-kv": {one.password_variable: values[one.password_variable] for one in REDIS.values()},
        "kvstate": {
            "RYZ_NATS_URL": buses["kvstate"],
            "RYZ_REDIS_URL": stores["kvstate"].format("redis"),
            "RYZ_KV_REDIS_URL": stores["kvstate"].format("redis-kv"),
        },
        "router": {"RYZ_NATS_URL": buses["router"]},
        "worker": {"RYZ_NATS_URL": buses["worker"], "RYZ_KV_REDIS_URL": stores["worker"].format("redis-kv")},
        "gateway": {"RYZ_NATS_URL": buses["gateway"], SESSION_KEY: values[SESSION_KEY]},
        "cli": {"RYZ_NATS_URL": buses["cli"]},
    }
    return {role: shell_text(found) for role, found in lines.items()} | {"grafana": values[GRAFANA]}


def shell_text(values: Mapping[str, str]) -> str:
    """Return lines that a shell reads with `.`."""
    return "".join(f"export {name}={shlex.quote(value)}\n" for name, value in values.items())


def read(file: Path) -> dict[str, str]:
    """Return what `shell_text` has written; nothing if there is no such file."""
    words = shlex.split(file.read_text()) if file.exists() else []
    return dict(word.split("=", 1) for word in words if "=" in word)


def write(folder: Path, values: Mapping[str, str], groups: Mapping[str, int] = GROUPS) -> None:
    """Replace all files, each at once, so that no reader sees half of one."""
    _replace(folder / ALL, shell_text(values), 0o600, None)
    for role, text in files_of(values).items():
        _replace(folder / (role if role == "grafana" else f"{role}.env"), text, 0o440, groups[role])


def _replace(path: Path, text: str, mode: int, group: int | None) -> None:
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")  # made with 0600
    with os.fdopen(handle, "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
        os.fchmod(file.fileno(), mode)
        if group is not None:
            os.fchown(file.fileno(), -1, group)
    os.replace(name, path)


def own_volumes(folder: Path) -> None:
    """Give each volume below the folder to the user of the services: a new one belongs to root."""
    for volume in sorted(folder.iterdir()) if folder.is_dir() else ():
        if volume.stat().st_uid != SERVICE_USER:
            os.chown(volume, SERVICE_USER, SERVICE_USER)


def main(arguments: Iterable[str]) -> int:
    """Makes what is missing, or does what the module says; prints no password unless asked for one."""
    what, *more = arguments or ["make"]
    kept = read(SECRETS / ALL)
    if what == "show" and len(more) == 1 and more[0] in kept:
        print(kept[more[0]])
        return 0
    if more or what not in {"make", "rotate"}:
        print(f"init: `rotate`, or `show` and one of {', '.join([*names(), SESSION_KEY])}", file=sys.stderr)
        return 2
    if wrong := problems(os.environ):
        print("\n".join(f"init: {problem}" for problem in wrong), file=sys.stderr)
        return 2
    values = settled(os.environ, kept, rotate=what == "rotate")
    write(SECRETS, values)
    own_volumes(VOLUMES)
    changed = sum(kept.get(name) != value for name, value in values.items())
    print(f"init: {changed} passwords are new, {len(values) - changed} stay")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
