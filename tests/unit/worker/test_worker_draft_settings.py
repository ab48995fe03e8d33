"""Which models a group takes as its draft model, and with what it runs them."""

from pathlib import Path
from typing import Any

import pytest

from cli.stack.model_dir import demo_model
from services.worker.__main__ import check_draft_model, make_draft_engine
from services.worker.load_model import load_model
from services.worker.null.null_model import null_model
from services.worker.settings import WorkerSettings
from shared.errors import InvalidRequest


def settings(draft: Path, **changes: Any) -> WorkerSettings:
    return WorkerSettings(model=str(demo_model()), draft_model=str(draft), **changes)


def test_a_model_of_the_same_vocabulary_is_taken() -> None:
    check_draft_model(settings(demo_model()), load_model(demo_model()))


def test_another_vocabulary_is_refused_with_what_differs() -> None:
    with pytest.raises(InvalidRequest, match=r"another vocabulary .* its token 0 is") as refused:
        check_draft_model(settings(demo_model()), null_model("null", 1024))
    assert refused.value.data["param"] == "draft_model"


def test_what_is_no_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="the draft model cannot be used"):
        check_draft_model(settings(tmp_path), load_model(demo_model()))


def test_its_one_rank_has_the_threads_of_all_ranks_and_a_cache_of_its_own() -> None:
    given = settings(
        demo_model(), tensor_parallel=2, threads=3, draft_precision="int8", draft_cache_tokens=2048
    )
    run = make_draft_engine(given)._run
    assert (run.tensor_parallel, run.threads, run.precision) == (1, 6, "int8")
    assert run.kv_cache_tokens == 2048
    assert run.token_budget >= run.max_running
