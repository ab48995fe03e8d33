"""A real Redis with the users of a deployment: the commands and keys that each user may use.

The contract tests of the stores run as the user of the KV state service and show that its permissions
suffice; a test below shows the same for ranks.
"""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import redis

from services.kvstate.domain import keys
from shared.kv_hash import data_key
from shared.redis_accounts import ACCOUNTS, acl_file
from tests.kits.engine.kv_moves import FakeBlocks, names, rank
from tests.kits.servers import ROOT, GuardedRedis
from tests.kits.worker.options import kv_store

BLOCK = data_key(bytes(16))
SESSION = keys.session("acme", "s1")
# Commands that read or change the server, other connections or code, or affect all keys.
FORBIDDEN = [
    ("CONFIG", "SET", "dir", "/tmp"), ("CONFIG", "GET", "*"), ("CONFIG", "REWRITE"),
    ("MODULE", "LOAD", "/x.so"),
    ("MODULE", "LIST"), ("DEBUG", "SLEEP", "0"), ("FLUSHALL",), ("FLUSHDB",), ("KEYS", "*"), ("SAVE",),
    ("BGSAVE",), ("BGREWRITEAOF",), ("SHUTDOWN", "NOSAVE"), ("REPLICAOF", "127.0.0.1", "1"),
    ("SLAVEOF", "127.0.0.1", "1"), ("ACL", "LIST"), ("ACL", "SETUSER", "x"), ("ACL", "WHOAMI"),
    ("CLIENT", "LIST"), ("CLIENT", "KILL", "ID", "1"), ("CLIENT", "PAUSE", "10000"), ("MONITOR",),
    ("SCRIPT", "FLUSH"), ("SCRIPT", "KILL"), ("EVAL", "return 1", "0"), ("SWAPDB", "0", "1"), ("DBSIZE",),
    ("MIGRATE", "127.0.0.1", "1", BLOCK, "0", "10"), ("DUMP", BLOCK), ("RESTORE", BLOCK, "0", "x"),
    ("RENAME", BLOCK, BLOCK), ("COPY", BLOCK, BLOCK), ("MOVE", BLOCK, "1"), ("OBJECT", "ENCODING", BLOCK),
    ("SORT", BLOCK), ("PUBLISH", "x", "y"), ("SUBSCRIBE", "x"), ("PSUBSCRIBE", "*"), ("LATENCY", "RESET"),
    ("SLOWLOG", "GET"), ("MEMORY", "DOCTOR"), ("CLUSTER", "INFO"), ("FAILOVER",), ("PSYNC", "?", "-1"),
]  # fmt: skip
NOT_A_RANKS = [
    ("INFO",), ("SCAN", "0"), ("EVALSHA", "0" * 40, "0"), ("SCRIPT", "LOAD", "return 1"), ("DEL", BLOCK),
    ("UNLINK", BLOCK), ("HDEL", BLOCK, "0"), ("PERSIST", BLOCK), ("HGET", SESSION, "r"), ("TIME",),
]  # fmt: skip


def connect(url: str) -> redis.Redis:
    return redis.Redis.from_url(url, socket_timeout=5)


def execute(client: redis.Redis, *command: str | bytes | int) -> Any:
    run: Callable[..., Any] = client.execute_command
    return run(*command)


def refuse(client: redis.Redis, command: tuple[str | bytes, ...]) -> None:
    # Redis 7 itself disables MODULE and DEBUG for all users
    with pytest.raises(redis.exceptions.ResponseError, match=r"(?i)no permissions|command not allowed"):
        execute(client, *command)


@pytest.mark.parametrize("user", ACCOUNTS)
@pytest.mark.parametrize("command", FORBIDDEN, ids=lambda command: " ".join(map(str, command[:2])))
def test_no_service_may_touch_the_server(
    guarded_redis: GuardedRedis, user: str, command: tuple[str, ...]
) -> None:
    refuse(connect(guarded_redis.url(user)), command)


@pytest.mark.parametrize("command", NOT_A_RANKS, ids=lambda command: " ".join(map(str, command[:1])))
def test_a_rank_may_not_do_what_the_kv_state_service_does(
    guarded_redis: GuardedRedis, command: tuple[str, ...]
) -> None:
    refuse(connect(guarded_redis.url("worker")), command)


@pytest.mark.parametrize(
    "key",
    [
        SESSION,
        keys.META,
        keys.ORDER,
        keys.HOLDERS,
        keys.PINS,
        keys.TENANTS,
        "other",
        "ryz:kv:datax",
    ],
)
def test_a_rank_names_keys_of_block_bytes_only(guarded_redis: GuardedRedis, key: str) -> None:
    client = connect(guarded_redis.url("worker"))
    refuse(client, ("HSET", key, "r", "x"))
    refuse(client, ("HMGET", key, "r"))
    refuse(client, ("EXPIRE", key, "1"))


def test_ranks_write_and_read_blocks_as_their_user(guarded_redis: GuardedRedis) -> None:
    config = kv_store(guarded_redis.url("worker"), compression="none", ttl_s=90.0)
    stored = names(3)
    with rank(config, FakeBlocks(range(2))) as writer:
        writer.blocks.fill(seed=1)
        writer.store(stored)
        assert writer.reports.written == b"".join(stored)
        assert not writer.reports.dropped
    with rank(config, FakeBlocks(range(2))) as reader:
        fetched = reader.fetch(stored, first=0)
        assert (fetched.count, fetched.error) == (3, "")


def test_the_kv_state_service_names_its_own_keys_only(guarded_redis: GuardedRedis) -> None:
    client = connect(guarded_redis.url("kvstate"))
    refuse(client, ("SET", "other", "x"))
    refuse(client, ("GET", "other"))
    digest = execute(client, "SCRIPT LOAD", "return redis.call('GET', KEYS[1])")
    with pytest.raises(redis.exceptions.RedisError, match=r"(?i)can't access|permission|NOPERM"):
        execute(client, "EVALSHA", digest, 1, "other")


def test_scripts_gain_no_rights(guarded_redis: GuardedRedis) -> None:
    client = connect(guarded_redis.url("kvstate"))
    for call in ("'CONFIG', 'GET', '*'", "'KEYS', '*'", "'FLUSHALL'", "'ACL', 'LIST'"):
        digest = execute(client, "SCRIPT LOAD", f"return redis.call({call})")
        with pytest.raises(redis.exceptions.RedisError, match=r"(?i)permission|can't run|NOPERM|not allowed"):
            execute(client, "EVALSHA", digest, 0)


@pytest.mark.parametrize(
    "credentials", ["", ":x@", "default:x@", "default:@", "kvstate:x@", "worker:x@", "stranger:x@"]
)
def test_a_stranger_is_refused(guarded_redis: GuardedRedis, credentials: str) -> None:
    client = connect(f"redis://{credentials}127.0.0.1:{guarded_redis.port}/0")
    for command in (("PING",), ("INFO",), ("KEYS", "*"), ("SET", "x", "y"), ("FLUSHALL",)):
        with pytest.raises((redis.exceptions.AuthenticationError, redis.exceptions.NoPermissionError)):
            execute(client, *command)


def test_every_command_of_the_scripts_is_in_the_table() -> None:
    """Finds commands in rare branches of scripts before a deployment runs them."""
    source = "".join(path.read_text() for path in (ROOT / "services" / "kvstate").rglob("*.lua"))
    used = {name.lower() for name in re.findall(r"redis\.p?call\(\s*'(\w+)'", source)}
    assert len(used) > 20
    assert used <= set(ACCOUNTS["kvstate"].commands)


def test_every_key_of_the_kv_state_service_is_in_its_pattern() -> None:
    spelled = [value for name, value in vars(keys).items() if name.isupper() and isinstance(value, str)]
    assert len(spelled) > 8
    assert all(value == keys.PREFIX or value.startswith("ryz:") for value in spelled)


def test_the_file_has_no_password_in_it_and_leaves_out_users_that_are_not_served(tmp_path: Path) -> None:
    text = acl_file({"kvstate": "pSecret1"})
    assert "pSecret1" not in text
    assert "worker" not in text
    assert text.startswith("user default off ~* &* +@all\n")
    with pytest.raises(ValueError, match="empty"):
        acl_file({"kvstate": ""})
    with pytest.raises(ValueError, match="no such user"):
        acl_file({"stranger": "x"})
