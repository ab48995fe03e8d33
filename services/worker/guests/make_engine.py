"""Makes the engine of a group whose model an engine of others computes."""

from services.worker.guests.engine import GuestEngine
from services.worker.guests.remote.guest import RemoteGuest
from services.worker.guests.remote_settings import RemoteSettings
from services.worker.guests.vllm.guest import VllmGuest
from services.worker.guests.vllm.options import VllmOptions, VllmSettings
from services.worker.model_files.model import Model
from services.worker.settings import WorkerSettings


def make_remote_engine(settings: WorkerSettings, model: Model) -> GuestEngine:
    """Make the engine in front of a remote server.

    Raises:
        InvalidRequest: The server's address or the file of its key cannot be used.
    """
    options = settings.part(RemoteSettings).options(model.name)
    guest = RemoteGuest(options, tokenizer=model.tokenizer, context_length=model.context_length)
    return GuestEngine(
        guest, max_running=settings.max_running, start_timeout_s=settings.engine_start_timeout_s
    )


def make_vllm_engine(settings: WorkerSettings) -> GuestEngine:
    """Make the engine in front of vLLM's own process."""
    given = settings.part(VllmSettings)
    options = VllmOptions(
        **vars(given),
        model=settings.model,
        prefix_sharing=settings.prefix_sharing,
        silence_s=settings.step_timeout_s,
    )
    return GuestEngine(
        VllmGuest(options),
        max_running=settings.max_running,
        start_timeout_s=settings.engine_start_timeout_s,
    )
