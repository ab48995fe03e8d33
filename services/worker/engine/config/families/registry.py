"""All families by the names of their architectures."""

from services.worker.engine.config.families import llama
from services.worker.engine.config.families.family import Family

FAMILIES: dict[str, Family] = {**llama.FAMILIES}


def family_of(architecture: str) -> Family:
    """The family of an architecture that `read_config` has accepted."""
    return FAMILIES[architecture]
