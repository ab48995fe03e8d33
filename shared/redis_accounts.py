"""Who may run which commands on which keys of Redis: one user for each kind of service.

The table is the source of `deploy/redis.acl`, of the ACL file that `ryz up` gives its Redis (`acl_file`) and
of the table in `docs/security.md`. What is not named here is refused, and so is a connection without a user.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256

from shared.kv_store import PREFIX_PATTERN

_CONNECTION = ("ping", "select")  # AUTH and HELLO need no permission


@dataclass(frozen=True, slots=True)
class RedisAccount:
    """One user of Redis.

    keys: patterns of the keys that it may name, in scripts too. commands: in the spelling of ACL rules; those
    of scripts are checked like those of the connection.
    """

    user: str
    who: str
    keys: tuple[str, ...]
    commands: tuple[str, ...]

    @property
    def password_variable(self) -> str:
        """The environment variable that has the user's password, for the start of Redis."""
        return f"RYZ_REDIS_{self.user.upper()}_PASSWORD"


_KVSTATE = RedisAccount(
    "kvstate",
    "the KV state service: sessions, and what is known of KV blocks",
    keys=("ryz:*",),
    commands=(
        *_CONNECTION,
        "info", "time", "evalsha", "script|load", "scan",
        "del", "exists", "pexpire", "pttl", "unlink",
        "get", "set",
        "hdel", "hexists", "hget", "hincrby", "hkeys", "hlen", "hmget", "hscan", "hset", "hstrlen",
        "sadd", "srandmember", "srem",
        "zadd", "zcard", "zlexcount", "zrange", "zrangebylex", "zrangebyscore", "zrem", "zremrangebyscore",
        "zrevrangebyscore", "zscore",
    ),
)  # fmt: skip
_WORKER = RedisAccount(
    "worker",
    "ranks: the bytes of KV blocks",
    keys=(PREFIX_PATTERN,),
    commands=(*_CONNECTION, "multi", "exec", "discard", "hset", "hmget", "expire"),
)

ACCOUNTS: Mapping[str, RedisAccount] = {account.user: account for account in (_KVSTATE, _WORKER)}


def acl_file(passwords: Mapping[str, str]) -> str:
    """An ACL file for `redis-server --aclfile`, with hashed passwords.

    Args:
        passwords: of each user that this Redis serves, by its name. The others, and `default`, are off.

    Raises:
        ValueError: a password is empty, or its user is not in the table.
    """
    if unknown := sorted(set(passwords) - set(ACCOUNTS)):
        raise ValueError(f"no such user of Redis: {', '.join(unknown)}; there are {', '.join(ACCOUNTS)}")
    if empty := sorted(user for user, password in passwords.items() if not password):
        raise ValueError(f"the password of {', '.join(empty)} is empty")
    users = [acl_line(ACCOUNTS[user], sha256(word.encode()).hexdigest()) for user, word in passwords.items()]
    return "\n".join(["user default off", *users, ""])


def acl_line(account: RedisAccount, digest: str) -> str:
    """The line of one user. digest: SHA-256 of its password, in hexadecimal."""
    keys = " ".join(f"~{pattern}" for pattern in account.keys)
    commands = " ".join(f"+{command}" for command in account.commands)
    return f"user {account.user} on #{digest} {keys} resetchannels -@all {commands}"
