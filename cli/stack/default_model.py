"""The model that `ryz up` serves when none is named: a small real one, else the demo, with the reason."""

from pathlib import Path

from cli.console import INTERRUPTED, CommandError
from cli.models.catalogue import DEMO, catalogue
from cli.models.choosing.fits import better_words
from cli.models.resolve import resolve_model

DEFAULT = "smollm2-135m"


def default_model(*, pull: bool | None) -> tuple[Path, str]:
    """Return the path of the default model, fetched once, and a closing line on which model it is and why.

    Without a network, or where it must not be fetched, it is the demo model.

    Args:
        pull: False: do not fetch it.
    """
    try:
        path = resolve_model(DEFAULT, pull=pull is not False)
    except CommandError as error:
        if error.exit_code == INTERRUPTED:
            raise
        return resolve_model(DEMO), (
            f"This is the demo model, 2 M parameters, which serves for tests only, because {DEFAULT} is not "
            f"here: {error}"
        )
    chosen = f"The model is {DEFAULT} ({catalogue()[DEFAULT].title}), the default."
    return path, f"{chosen} {better_words() or '`--model` takes another one.'}"
