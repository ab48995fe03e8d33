"""Where the files of models are in the containers of `compose.yaml`, and what has to be mounted for that.

Pulled models are in the volume that is mounted at /models; the demo model is in the image of the workers. All
other files are mounted where they are on this machine, so that a models file means the same in both.
"""

from pathlib import Path

from cli.models.catalogue import DEMO, catalogue
from cli.models.names import is_hub_name
from cli.models.store import models_dir
from cli.stack.model_dir import demo_model

VOLUME = Path("/models")
DEMO_IN_IMAGE = Path("/srv/models/demo")


def path_in_container(path: Path) -> Path:
    """Return where workers find a model."""
    pulled = models_dir().resolve()
    if path.is_relative_to(pulled):
        return VOLUME / path.relative_to(pulled)
    return DEMO_IN_IMAGE if path == demo_model().resolve() else path


def is_mounted(path: Path) -> bool:
    """Whether a model is neither in the volume nor in the image."""
    return path_in_container(path) == path and not path.is_relative_to(VOLUME)


def leads_outside(path: Path) -> bool:
    """Whether a directory has links to files outside of it, which a container would not have."""
    return path.is_dir() and any(not one.resolve().is_relative_to(path) for one in path.rglob("*"))


def pulled_name(source: str) -> str:
    """Return the name by which `ryz models pull` fetches a source; empty if it is not fetched."""
    return source if source != DEMO and (source in catalogue() or is_hub_name(source)) else ""
