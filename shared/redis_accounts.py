"""The users of Redis, one for each kind of service, and the commands and keys that each may use.

The table is the source of `deploy/redis.acl`, of the ACL file that `ryz up` gives its Redis (`acl_file`) and
of the table in `docs/security.md`. Redis refuses everything else, and connections without a user.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256

from shared.kv_hash import PREFIX_PATTERN

_CONNECTION = ("ping", "select")  # AUTH and HELLO need no permission
# Redis reads its append-only file as `default`, and refuses commands there that this user may not run. `off`
# keeps it from every connection: see docs/decisions/0059-what-lasts-is-read-back.md.
DEFAULT_USER = "user default off ~* &* +@all"


@dataclass(frozen=True, slots=True)
class RedisAccount:
    """One user of Redis.

    Attributes:
        who: Its description for people.
        keys: Patterns of the keys that it may use, also in scripts.
        commands: Commands that it may use, also in scripts, as ACL rules spell them.
    """

    user: str
    who: str
    keys: tuple[str, ...]
    commands: tuple[str, ...]

    @property
    def password_variable(self) -> str:
        """The environment variable that has the user's password when Redis starts."""
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
    """Returns an ACL file for `redis-server --aclfile`, with hashed passwords.

    Args:
        passwords: The password of each user of this Redis. No other user can connect, `default` included.

    Raises:
        ValueError: A password is empty, or a user is not in the table.
    """
    if unknown := sorted(set(passwords) - set(ACCOUNTS)):
        raise ValueError(f"no such user of Redis: {', '.join(unknown)}; there are {', '.join(ACCOUNTS)}")
    if empty := sorted(user for user, password in passwords.items() if not password):
        raise ValueError(f"the password of {', '.join(empty)} is empty")
    users = [acl_line(ACCOUNTS[user], sha256(word.encode()).hexdigest()) for user, word in passwords.items()]
    return "\n".join([DEFAULT_USER, *users, ""])


def acl_line(account: RedisAccount, digest: str) -> str:
    """Returns the line of one user; `digest` is the SHA-256 of its password in hexadecimal."""
    keys = " ".join(f"~{pattern}" for pattern in account.keys)
    commands = " ".join(f"+{command}" for command in account.commands)
    return f"user {account.user} on #{digest} {keys} resetchannels -@all {commands}"
