"""Starts a group's leader: settings, model files, bus connections, engine, leader."""

import sys
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import cast

import structlog

from services.worker.adapters.inspection import AdapterInspector
from services.worker.domain.scheduling.scheduler import SchedulerLimits
from services.worker.domain.speculation.speculation import DRAFT_TOKENS
from services.worker.draft_model import make_draft_engine
from services.worker.engine.config.json_fields import ModelError
from services.worker.engine.config.read_config import read_config
from services.worker.forking.early_fork import EarlyFork, fork_early
from services.worker.leader.adapters.calls import Inspect
from services.worker.leader.fleet.drain import HAND_OVER_S
from services.worker.leader.fleet.name_claim import NameClaim
from services.worker.leader.grammar_trials import trial_process
from services.worker.leader.heartbeats import process as heartbeats_process
from services.worker.leader.heartbeats.page import HeartbeatProcessOptions
from services.worker.leader.heartbeats.process_carrier import ProcessCarrier
from services.worker.leader.intake.grammar_options import GrammarOptions
from services.worker.leader.kv_tier.kv_options import KVOptions
from services.worker.leader.leader import Leader
from services.worker.leader.options import LeaderOptions, LeaderSettings
from services.worker.leader.sessions.record_limits import SessionRecordLimits
from services.worker.leader.wiring import LeaderPorts, build_leader
from services.worker.make_engines import make_engine_without_ranks, make_rank_engine
from services.worker.model_files.load_model import load_model, with_sampling_defaults, with_tool_format
from services.worker.model_files.model import Model
from services.worker.model_files.sampling_defaults import parse_sampling
from services.worker.null.adapter_files import inspect_null_adapter
from services.worker.null.model import CONTEXT_LENGTH, null_model
from services.worker.orchestrator.rank_engine import RankEngine
from services.worker.rank_protocol.failures import EngineFailed, EngineRefused
from services.worker.rank_protocol.plan import Engine
from services.worker.settings import WorkerSettings
from shared.client.calls.blocks_client import BlocksClient
from shared.client.calls.sessions_client import SessionsClient
from shared.errors import Internal, InvalidRequest, Unavailable
from shared.host.settled_memory import settle_memory
from shared.lifecycle import Service, run_service
from shared.settings import load

log = structlog.get_logger(__name__)
# The event loop asks threads that tokenize or compile grammars for the interpreter's lock after this time, in
# place of Python's default of 5 ms.
SWITCH_INTERVAL_S = 0.001


def make_model(settings: WorkerSettings) -> Model:
    """Read the model's files, or make the built-in model of the null engine."""
    if settings.model:
        model = load_model(Path(settings.model), settings.model_name)
    else:
        model = null_model(settings.model_name or "null", CONTEXT_LENGTH)
    model = replace(model, tenants=tuple(filter(None, settings.model_tenants.split(","))))
    own, fallback = map(parse_sampling, (settings.sampling_defaults, settings.sampling_fallback))
    return with_tool_format(with_sampling_defaults(model, own, fallback), settings.tool_format)


def adapter_reader(settings: WorkerSettings) -> Inspect | None:
    """Return what reads an adapter's files for the engine; None if it has none of its own."""
    if settings.engine == "null":
        return inspect_null_adapter
    if settings.engine in ("remote", "vllm"):
        return None
    return AdapterInspector(Path(settings.model), settings.tensor_parallel).inspect


def check_config(settings: WorkerSettings) -> None:
    """Refuse a model's shape before any rank is started; the ranks check it again with its weights."""
    try:
        read_config(Path(settings.model)).check_split(settings.tensor_parallel)
    except ModelError as error:
        raise InvalidRequest(f"the engine refuses: {error}", param="model") from error


def _draft_tokens(settings: WorkerSettings) -> int:
    """Drafts of a sequence in one step.

    None on GPUs, where a chunk is not bit for bit as single tokens, and none with the null engine, whose text
    repeats itself: each guess would be right, and its steps would measure nothing. Guests guess themselves.
    """
    wanted = settings.speculation != "off" and settings.device == "cpu" and settings.engine == "torch"
    return DRAFT_TOKENS if wanted else 0


def leader_options(settings: WorkerSettings) -> LeaderOptions:
    """Take the leader's options from the settings."""
    own = settings.part(LeaderSettings)
    if settings.engine in ("remote", "vllm"):  # their KV is their own, and so is what requests share of it
        own = replace(own, prefix_sharing="off")
    return LeaderOptions(
        **vars(own),
        group=settings.group,
        instance_id=settings.instance_id,
        tensor_parallel=settings.tensor_parallel,
        drain_timeout_s=settings.drain_timeout_s,
        steps=SchedulerLimits(
            settings.token_budget,
            settings.max_running,
            settings.max_waiting,
            settings.itl_target_ms / 1000,
            settings.max_running_per_tenant,
            _draft_tokens(settings),
        ),
        kv=settings.part(KVOptions),
        grammars=settings.part(GrammarOptions),
        sessions=settings.part(SessionRecordLimits),
    )


def heartbeat_options(
    settings: WorkerSettings, options: LeaderOptions, service: str
) -> HeartbeatProcessOptions:
    """Take what the process that sends heartbeats needs."""
    return HeartbeatProcessOptions(
        nats_url=settings.nats_url,
        nats_inbox=settings.nats_inbox,
        nats_ca=settings.nats_ca,
        nats_cert=settings.nats_cert,
        nats_key=settings.nats_key,
        nats_local=settings.nats_local,
        connect_wait_s=settings.nats_connect_wait_s,
        connection=f"{service}/{settings.instance_id}/heartbeats",
        instance_id=settings.instance_id,
        group=settings.group,
        interval_s=options.heartbeat_interval_s,
        stale_s=options.heartbeat_stale_s,
        log_level=settings.log_level,
        log_format=settings.log_format,
        log_burst=settings.log_burst,
    )


@dataclass(frozen=True, slots=True)
class EarlyForks:
    """Processes beside the leader that were forked before it had threads; None: by interpreters, later."""

    heartbeats: EarlyFork | None
    trials: EarlyFork | None

    def close(self) -> None:
        """End those that have no work yet."""
        for fork in (self.heartbeats, self.trials):
            if fork is not None:
                fork.close()


def log_ready(leader: Leader, engine: Engine) -> None:
    """Log what computes."""
    if (guest := leader.guest) is not None:
        log.info("the guest is ready", guest=guest.name, lacks=guest.lacks)
    for rank in engine.status() if guest is None else ():
        rank.pop("faults", None)  # none yet
        log.info("a rank is ready", **rank)


async def setup(
    service: Service, stack: AsyncExitStack, *, ranks: RankEngine | None, forks: EarlyForks
) -> None:
    """Connect everything; the stack closes it in reverse order."""
    settings = cast(WorkerSettings, service.settings)
    stack.callback(forks.close)
    if ranks is not None:
        stack.push_async_callback(ranks.stop)
        check_config(settings)
    bus = await service.connect_bus(stack)
    claim = NameClaim(settings.group, settings.instance_id, bus=bus, state=lambda: service.state)
    if ranks is not None and await claim.is_free():  # else another leader's ranks may have the memory
        ranks.start_loading()
    model = make_model(settings)
    draft_engine = make_draft_engine(settings, model)
    if draft_engine is not None:
        stack.push_async_callback(draft_engine.stop)
    engine, kv_contents = (ranks, None) if ranks is not None else make_engine_without_ranks(settings, model)
    settle_memory()  # before the first heartbeat: it takes longer than routers wait for one
    outside = await service.connect_bus(stack, "outside", needed=False)
    options = leader_options(settings)
    ports = LeaderPorts(
        bus=bus,
        outside=outside,
        carrier=ProcessCarrier(bus, heartbeat_options(settings, options, service.name), forks.heartbeats),
        engine=engine,
        model=model,
        store=SessionsClient(bus),
        index=BlocksClient(bus),
        registry=service.registry,
        timelines=service.timelines,
        tracer=ranks.tracing if ranks is not None else None,
        spans=service.spans,
        draft_engine=draft_engine,
        trials=forks.trials,
        inspect=adapter_reader(settings),
        kv_contents=kv_contents,
    )
    leader = build_leader(options, ports)
    claim.answer_for(lambda: leader.state)
    stack.push_async_callback(claim.release)
    stack.push_async_callback(leader.stop)
    service.set_detail(leader.detail)
    service.add_check("engine", lambda: leader.state == "ready")

    async def end_when_drained() -> None:  # also if it is asked to drain before it is ready
        await leader.drained.wait()
        if service.state != "draining":  # else a signal asked for it
            service.stop()

    service.spawn(end_when_drained(), "end when drained")
    await service.answer_operators(bus, outside)
    await service.serve_admin(stack)
    await claim.take()  # before the first heartbeat, at which routers drop another leader of this name
    try:
        await leader.start()
    except EngineRefused as error:
        raise InvalidRequest(f"the engine refuses: {error}", param="model") from error
    except EngineFailed as error:
        raise Unavailable(f"the engine does not start: {error}", reason="engine_failed") from error

    log_ready(leader, engine)

    async def drain() -> None:
        timeout_s = settings.drain_timeout_s  # the hand-over of KV gets a part of it
        await leader.drain(max(timeout_s - HAND_OVER_S, timeout_s / 2))

    async def watch() -> None:
        await leader.crashed.wait()
        raise Internal("a task of the leader crashed; the log has the trace")

    service.on_drain(drain)
    service.spawn(watch(), "watch the leader")
    service.ready()


def main() -> None:
    """Run the command `python -m services.worker`."""
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    settings, ranks = load(WorkerSettings), None
    forks = EarlyForks(fork_early(heartbeats_process.__name__), fork_early(trial_process.__name__))
    if settings.engine == "torch":
        ranks = make_rank_engine(settings)
        # before there is any thread; torch is loaded while this process loads the tokenizer and connects
        ranks.start_fork_server()
    of_group = {"group": settings.group}
    run_service(settings, "worker", partial(setup, ranks=ranks, forks=forks), log_names=of_group)


if __name__ == "__main__":
    main()
