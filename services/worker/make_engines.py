"""Makes the engine that a group's settings name."""

from services.worker.domain.kv_events.contents import KVContents
from services.worker.model_files.model import Model
from services.worker.null.engine import TEXT, NullEngine
from services.worker.orchestrator.options import RankEngineOptions, RankProcessOptions
from services.worker.orchestrator.rank_engine import RankEngine
from services.worker.rank_protocol.kv_messages import KVStoreConfig
from services.worker.rank_protocol.plan import BLOCK_SIZE, Engine
from services.worker.rank_protocol.run_config import EngineRunConfig
from services.worker.settings import WorkerSettings


def make_null_engine(settings: WorkerSettings, model: Model) -> NullEngine:
    """Make the engine without weights."""
    return NullEngine(
        tokens=model.tokenizer.encode(TEXT, add_special_tokens=False),
        num_blocks=max(1, settings.kv_cache_tokens // BLOCK_SIZE),
        vocab_size=model.tokenizer.vocab_size,
        context_length=model.context_length,
        step_delay_s=settings.null_step_delay_ms / 1000,
    )


def make_engine_without_ranks(settings: WorkerSettings, model: Model) -> tuple[Engine, KVContents | None]:
    """Make an engine that runs in this process, or one of others with the KV cache that it tells of."""
    if settings.engine == "null":
        return make_null_engine(settings, model), None
    from services.worker.guests.make_engine import make_guest_engine  # noqa: PLC0415 (httpx: 0.2 s, few need it)

    return make_guest_engine(settings, model)


def make_store(settings: WorkerSettings) -> KVStoreConfig | None:
    """Return the store where ranks write and read KV blocks, or None."""
    variable = "RYZ_KV_REDIS_URL" if settings.kv_redis_url else "RYZ_REDIS_URL"
    url = settings.kv_redis_url or settings.redis_url
    if not url or settings.prefix_sharing == "off":
        return None
    return KVStoreConfig(
        url=settings.redis_address(url, variable),
        compression=settings.kv_compression,
        host_dir=settings.kv_host_dir,
        host_bytes=settings.kv_host_bytes // settings.tensor_parallel,
        host_owner=settings.group,
    )


def make_rank_engine(settings: WorkerSettings) -> RankEngine:
    """Make the engine of real models."""
    return RankEngine(
        RankEngineOptions(
            run=settings.part(EngineRunConfig),
            processes=settings.part(RankProcessOptions),
            kv_store=make_store(settings),
            instance_id=settings.instance_id,
            group=settings.group,
        )
    )
