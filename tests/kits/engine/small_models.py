"""The fixture `model`: the directory of a small random model, which no test changes.

`tests/conftest.py` has the usual one, a Llama. A module that needs another one, or several, makes the fixture
anew: `model = small_model("qwen3", sliding_window=20)`.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

import pytest

Variants = Mapping[str, tuple[str, Mapping[str, Any]]]  # name: family and changes of its config
Make = Callable[..., Path]  # of a family, a directory and changes
Fixture = Callable[..., Path]


def make_tiny(family: str, directory: Path, **changes: Any) -> Path:
    """`make_model`; loads torch only when a test asks for a model."""
    from tests.kits.engine.rank_threads import make_model  # noqa: PLC0415

    return make_model(directory, family, **changes)


def small_model(
    family: str = "llama",
    *,
    scope: Literal["module", "session"] = "module",
    of_bytes: bool = False,
    **changes: Any,
) -> Fixture:
    """A fixture with one model; an `indirect` parameter is a dictionary of further changes.

    Args:
        family: See `make_model`, also for `changes`.
        scope: Of the fixture.
        of_bytes: The model has 256 tokens and a tokenizer whose tokens are bytes.
    """

    @pytest.fixture(scope=scope)
    def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
        own = {**changes, **getattr(request, "param", {})}
        return _made(make_tiny, family, tmp_path_factory.mktemp("model"), own, of_bytes)

    return model


def small_models(variants: Variants, *, make: Make = make_tiny, of_bytes: bool = False) -> Fixture:
    """A fixture with one model after another; `indirect` parameters choose some by name."""

    @pytest.fixture(scope="module", params=variants)
    def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
        family, changes = variants[request.param]
        return _made(make, family, tmp_path_factory.mktemp("model"), changes, of_bytes)

    return model


def all_models(variants: Variants) -> Callable[..., dict[str, Path]]:
    """The fixture `models`: the directories of all of them, by name."""

    @pytest.fixture(scope="module")
    def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
        return {
            name: make_tiny(family, tmp_path_factory.mktemp("model"), **changes)
            for name, (family, changes) in variants.items()
        }

    return models


def _made(make: Make, family: str, directory: Path, changes: Mapping[str, Any], of_bytes: bool) -> Path:
    if not of_bytes:
        return make(family, directory, **changes)
    from tests.kits.kv.kv_groups import add_byte_tokenizer  # noqa: PLC0415 (as above)

    make(family, directory, **{"vocab_size": 256, **changes})
    add_byte_tokenizer(directory)
    return directory
