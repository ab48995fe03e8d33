"""Makes the engine of the draft model, which guesses tokens for the served one (docs/speculation.md)."""

import dataclasses
from pathlib import Path

from services.worker.domain.speculation.speculation import MAX_SEQUENCES
from services.worker.engine.config.json_fields import ModelError
from services.worker.engine.config.read_config import read_config
from services.worker.leader.drafting.draft_engine import DraftEngine
from services.worker.leader.drafting.draft_rounds import FEW_TOKENS, POOL_TOKENS, READ_TOKENS
from services.worker.model_files.load_model import load_model
from services.worker.model_files.model import Model
from services.worker.orchestrator.options import RankEngineOptions, RankProcessOptions
from services.worker.orchestrator.rank_engine import RankEngine
from services.worker.rank_protocol.run_config import EngineRunConfig, PrecisionChoice
from services.worker.settings import WorkerSettings
from shared.errors import InvalidRequest


def check_draft_model(path: Path, model: Model) -> Model:
    """Reads a draft model and compares its vocabulary with that of the served model.

    Args:
        path: A directory, or a GGUF file.

    Raises:
        InvalidRequest: It cannot be read or computed, or a token of the served model has another id there.
    """
    draft = load_model(path)
    try:
        read_config(path).check_split(1)
    except ModelError as error:
        raise InvalidRequest(f"the engine refuses the draft model: {error}", param="draft_model") from error
    theirs = draft.tokenizer.vocabulary()
    for text, token_id in sorted(model.tokenizer.vocabulary().items(), key=lambda entry: entry[1]):
        if theirs.get(text) != token_id:
            raise InvalidRequest(
                f"the draft model {draft.name} has another vocabulary than {model.name}: token {token_id}, "
                f"{text!r}, has {_named(theirs.get(text))} there; set RYZ_DRAFT_MODEL to a smaller model of "
                "the same family, or RYZ_SPECULATION=lookup, which needs none",
                param="draft_model",
            )
    return draft


def draft_run(run: EngineRunConfig, path: Path, precision: PrecisionChoice) -> EngineRunConfig:
    """Returns how the draft model is computed: in one rank with the cores of all ranks of this host."""
    return EngineRunConfig(
        model=str(path),
        threads=run.threads * run.local_ranks,
        precision=precision,
        kernels=run.kernels,
        max_running=MAX_SEQUENCES,
        token_budget=READ_TOKENS + MAX_SEQUENCES * FEW_TOKENS,
        kv_cache_tokens=min(run.kv_cache_tokens or POOL_TOKENS, POOL_TOKENS),
        engine_start_timeout_s=run.engine_start_timeout_s,
        step_timeout_s=run.step_timeout_s,
    )


def make_draft_engine(settings: WorkerSettings, model: Model) -> DraftEngine | None:
    """Makes the engine of the draft model; None if the settings name none.

    Raises:
        InvalidRequest: The draft model does not suit the served one.
    """
    if settings.speculation != "draft" or settings.device != "cpu" or settings.engine != "torch":
        return None
    path = Path(settings.draft_model)
    draft = check_draft_model(path, model)
    options = RankEngineOptions(
        run=draft_run(settings.part(EngineRunConfig), path, settings.draft_precision),
        processes=dataclasses.replace(settings.part(RankProcessOptions), rank_listen="", rank_token=""),
        instance_id=settings.instance_id,
        group=settings.group,
    )
    return DraftEngine(RankEngine(options), draft.name)


def _named(token_id: int | None) -> str:
    return "no id" if token_id is None else f"the id {token_id}"
