"""A stack that serves the models of a models file."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.kits.e2e.stack import Stack


@contextmanager
def models_stack(
    folder: Path, models: str, *options: str, env: dict[str, str] | None = None
) -> Iterator[Stack]:
    """A stack that is ready; it has to end in good order and to leave no process behind.

    Args:
        folder: Where it is started.
        models: The text of the models file.
        options: Further ones of `ryz up`.
        env: Settings.
    """
    (folder / "models.toml").write_text(models)
    with Stack(folder, "--models", "models.toml", "--routers", "2", *options, env=env, calm=False) as stack:
        yield stack.await_ready()
        assert stack.end() == 0
        assert stack.leftovers() == []
