"""`RYZ_SPECULATION=draft`: what the settings need, and which draft models are refused."""

import json
import shutil
from pathlib import Path

import pytest
from pydantic import ValidationError

from cli.stack.model_dir import demo_model
from services.worker.draft_model import check_draft_model, draft_run, make_draft_engine
from services.worker.leader.drafting.draft_rounds import POOL_TOKENS
from services.worker.model_files.load_model import load_model
from services.worker.null.model import null_model
from services.worker.rank_protocol.run_config import EngineRunConfig
from services.worker.settings import WorkerSettings
from shared.errors import InvalidRequest


def _with_tokenizer(directory: Path, change: dict[str, str]) -> Path:
    """The demo model with tokens of other names."""
    directory.mkdir()
    for file in demo_model().iterdir():
        if file.suffix == ".json":
            shutil.copy(file, directory)
    path = directory / "tokenizer.json"
    tokenizer = json.loads(path.read_text())
    for old, new in change.items():
        tokenizer["model"]["vocab"][new] = tokenizer["model"]["vocab"].pop(old)
    tokenizer["model"]["merges"] = []
    path.write_text(json.dumps(tokenizer))
    return directory


def test_a_draft_model_has_to_be_named() -> None:
    with pytest.raises(ValidationError, match="RYZ_SPECULATION=lookup goes without one"):
        WorkerSettings(model="m", speculation="draft")
    assert WorkerSettings(model="m", speculation="draft", draft_model="d").draft_model == "d"
    assert WorkerSettings(engine="null", speculation="draft").draft_model == ""


def test_a_model_of_the_same_tokens_is_taken(tmp_path: Path) -> None:
    model = load_model(demo_model())
    assert check_draft_model(demo_model(), model).name == model.name
    assert check_draft_model(_with_tokenizer(tmp_path / "same", {}), model).name == "same"


def test_a_model_with_other_tokens_is_refused_with_the_first_of_them(tmp_path: Path) -> None:
    model = load_model(demo_model())
    names = {token_id: name for name, token_id in model.tokenizer.vocabulary().items()}
    other = _with_tokenizer(tmp_path / "other", {names[70]: "another"})
    with pytest.raises(InvalidRequest) as refused:
        check_draft_model(other, model)
    for expected in ("token 70", repr(names[70]), "no id", "RYZ_DRAFT_MODEL", "RYZ_SPECULATION=lookup"):
        assert expected in str(refused.value)
    assert load_model(other).tokenizer.vocab_size == model.tokenizer.vocab_size  # sizes tell nothing


def test_the_draft_model_has_one_rank_with_all_cores_and_a_small_cache() -> None:
    run = EngineRunConfig(model="m", tensor_parallel=4, remote_ranks=2, threads=3, kv_cold="fp8")
    draft = draft_run(run, Path("d"), "codes")
    assert (draft.model, draft.tensor_parallel, draft.threads, draft.precision) == ("d", 1, 6, "codes")
    assert (draft.kv_cache_tokens, draft.kv_cold, draft.remote_ranks) == (POOL_TOKENS, "none", 0)
    small = draft_run(EngineRunConfig(model="m", kv_cache_tokens=1000), Path("d"), "auto")
    assert (small.kv_cache_tokens, small.threads) == (1000, 0)


def test_there_is_no_draft_engine_where_nothing_is_guessed() -> None:
    demo = str(demo_model())
    null = WorkerSettings(engine="null", speculation="draft", draft_model=demo)
    assert make_draft_engine(null, null_model("null", 512)) is None
    model = load_model(demo_model())
    assert make_draft_engine(WorkerSettings(model=demo, draft_model=demo), model) is None
    cuda = WorkerSettings(model=demo, speculation="draft", draft_model=demo, device="cuda")
    assert make_draft_engine(cuda, model) is None
    made = make_draft_engine(WorkerSettings(model=demo, speculation="draft", draft_model=demo), model)
    assert made is not None
    assert (made.name, made.cache, made.failure) == (model.name, None, "")
