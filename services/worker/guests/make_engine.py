"""Makes the engine of a group whose model an engine of others computes."""

from services.worker.guests.engine import GuestEngine
from services.worker.guests.remote.guest import RemoteGuest
from services.worker.guests.remote_settings import RemoteSettings
from services.worker.guests.vllm.guest import VllmGuest
from services.worker.guests.vllm.options import VllmOptions, VllmSettings
from services.worker.model_files.model import Model
from services.worker.settings import WorkerSettings


def make_guest_engine(settings: WorkerSettings, model: Model) -> GuestEngine:
    """Make the engine that the settings name.

    Raises:
        InvalidRequest: The server's address or the file of its key cannot be used.
    """
    guest = _vllm(settings) if settings.engine == "vllm" else _remote(settings, model)
    return GuestEngine(
        guest, max_running=settings.max_running, start_timeout_s=settings.engine_start_timeout_s
    )


def _remote(settings: WorkerSettings, model: Model) -> RemoteGuest:
    options = settings.part(RemoteSettings).options(model.name)
    return RemoteGuest(options, tokenizer=model.tokenizer, context_length=model.context_length)


def _vllm(settings: WorkerSettings) -> VllmGuest:
    return VllmGuest(
        VllmOptions(
            **vars(settings.part(VllmSettings)),
            model=settings.model,
            prefix_sharing=settings.prefix_sharing,
            silence_s=settings.step_timeout_s,
        )
    )
