"""Makes the engine of a group whose model an engine of others computes."""

from services.worker.domain.kv_events.contents import KVContents
from services.worker.guests.engine import GuestEngine
from services.worker.guests.kv_events.own_vllm import OwnVllmKV, kv_of_own_vllm
from services.worker.guests.remote.guest import RemoteGuest
from services.worker.guests.remote_settings import RemoteSettings
from services.worker.guests.vllm.arguments import split_arguments
from services.worker.guests.vllm.guest import VllmGuest
from services.worker.guests.vllm.options import VllmOptions, VllmSettings
from services.worker.leader.intake.answer_forms import AnswerForms
from services.worker.model_files.model import Model
from services.worker.settings import WorkerSettings


def make_guest_engine(settings: WorkerSettings, model: Model) -> tuple[GuestEngine, KVContents | None]:
    """Make the engine that the settings name; with its KV cache, if it tells of it.

    Raises:
        InvalidRequest: The server's address or the file of its key cannot be used.
    """
    kv: OwnVllmKV | None = None
    if settings.engine == "vllm":
        kv = kv_of_own_vllm(split_arguments(settings.vllm_args), settings.prefix_sharing)
    guest = _vllm(settings, kv) if settings.engine == "vllm" else _remote(settings, model)
    engine = GuestEngine(
        guest,
        max_running=settings.max_running,
        start_timeout_s=settings.engine_start_timeout_s,
        reasons=AnswerForms(model).reasoning is not None,
    )
    return engine, kv.contents if kv is not None else None


def _remote(settings: WorkerSettings, model: Model) -> RemoteGuest:
    options = settings.part(RemoteSettings).options(model.name)
    return RemoteGuest(options, tokenizer=model.tokenizer, context_length=model.context_length)


def _vllm(settings: WorkerSettings, kv: OwnVllmKV | None) -> VllmGuest:
    return VllmGuest(
        VllmOptions(
            **vars(settings.part(VllmSettings)),
            model=settings.model,
            prefix_sharing=settings.prefix_sharing,
            silence_s=settings.step_timeout_s,
        ),
        kv=kv,
    )
