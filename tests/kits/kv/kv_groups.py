"""Groups of rank processes that share a Redis, for tests of blocks that one writes and another one reads."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from redis.asyncio import Redis
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from services.worker.leader.kv_tier.kv_options import KVOptions
from services.worker.orchestrator.rank_engine import RankEngine
from services.worker.rank_protocol.kv_messages import KVStoreConfig
from shared import kv_hash
from shared.errors import Unavailable
from shared.kv_hash import PREFIX_PATTERN, data_key
from shared.messages import BlocksCommitted, BlocksFound, Done, GenerateRequest, HeldBlocks, Usage
from tests.kits.engine.rank_options import rank_options
from tests.kits.waiting import until
from tests.kits.worker.leader import Kit, chat, tokens_of

ALWAYS = KVOptions(kv_fetch="always", kv_lookup_timeout_s=2.0, kv_fetch_timeout_s=10.0)
PROMPT = [(7 * i) % 251 for i in range(200)]


class RedisIndex:
    """An index of what ranks have written to Redis, in place of the KV state service.

    Attributes:
        away: Whether every call raises `Unavailable`.
        delay_s: Delay of every `find`.
    """

    def __init__(self, url: str) -> None:
        self.redis = Redis.from_url(url)
        self.held: dict[tuple[str, str], list[bytes]] = {}
        self.away = False
        self.delay_s = 0.0
        self.finds = 0

    async def find(
        self, names: Sequence[bytes], *, lease_ms: int, timeout_s: float, parts: int = 0
    ) -> BlocksFound:
        self.finds += 1
        await asyncio.sleep(min(self.delay_s, timeout_s))
        if self.away or self.delay_s > timeout_s:
            raise Unavailable("the index is away")
        count = 0
        for name in names:
            if not await self.redis.exists(data_key(name)):
                break
            count += 1
        return BlocksFound(count=count)

    async def commit(self, group: str, held: Sequence[HeldBlocks], *, timeout_s: float) -> BlocksCommitted:
        if self.away:
            raise Unavailable("the index is away")
        stored = 0
        for one in held:
            names = kv_hash.split(one.names)
            for name in names:
                stored += await self.redis.hlen(data_key(name)) == one.parts
            self.held[one.tenant, one.session_id] = names
        return BlocksCommitted(stored=stored)


def add_byte_tokenizer(directory: Path) -> None:
    """Gives a model of 256 token ids a tokenizer whose tokens are bytes."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={token: index for index, token in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(directory / "tokenizer.json"))


def kv_engine(path: Path, url: str, tensor_parallel: int = 2, **options: Any) -> RankEngine:
    """Rank processes with the store at that address."""
    store = KVStoreConfig(
        url=url,
        compression=options.pop("compression", "none"),
        host_dir=options.pop("host_dir", ""),
        host_bytes=options.pop("host_bytes", 2**20),
        host_owner=options.pop("host_owner", "g0"),
        host_lag_s=options.pop("host_lag_s", 0.0),
    )
    defaults: dict[str, Any] = {
        "threads": 1, "kv_cache_tokens": 4096, "step_timeout_s": 10.0, "kv_store": store
    }  # fmt: skip
    return RankEngine(rank_options(model=path, tensor_parallel=tensor_parallel, **(defaults | options)))


def ask(name: str, tokens: list[int], *, temperature: float = 0.0, max_tokens: int = 24) -> GenerateRequest:
    """A request with a prompt of tokens."""
    sampling = {"max_tokens": max_tokens, "temperature": temperature, "seed": 5, "ignore_eos": True}
    packed = b"".join(token.to_bytes(4, "little") for token in tokens)
    return chat(name, prompt_token_ids=packed, sampling=sampling)


def usage_of(frames: Any) -> Usage:
    """The usage in the last frame."""
    assert isinstance(frames[-1], Done)
    return frames[-1].usage


async def settled(kit: Kit, index: RedisIndex, blocks: int) -> None:
    """Waits until the store has `blocks` blocks and the index lists some."""

    async def has_all() -> bool:
        return len(await index.redis.keys(PREFIX_PATTERN)) >= blocks and bool(index.held)

    await until(has_all, longest_s=0.02)


async def write_turns(kit: Kit, index: RedisIndex) -> tuple[list[int], list[int]]:
    """Has a group write two turns to the store; returns the second prompt, and what was answered to it."""
    first = tokens_of(await kit.run(ask("a", PROMPT, temperature=1.0)))
    await settled(kit, index, 13)
    longer = PROMPT + first + [1, 2, 3]
    warm = tokens_of(await kit.run(ask("b", longer, temperature=1.0)))
    await settled(kit, index, (len(longer) + 24 - 1) // 16)
    return longer, warm
