"""All families by the names of their architectures."""

from services.worker.engine.config.families import (
    deepseek,
    gemma,
    layer_norms,
    llama,
    mixtures,
    older,
    phi,
    post_norms,
)
from services.worker.engine.config.families.family import Family

FAMILIES: dict[str, Family] = {
    **llama.FAMILIES,
    **gemma.FAMILIES,
    **phi.FAMILIES,
    **post_norms.FAMILIES,
    **layer_norms.FAMILIES,
    **older.FAMILIES,
    **mixtures.FAMILIES,
    **deepseek.FAMILIES,
}


def family_of(architecture: str) -> Family:
    """The family of an architecture that `read_config` has accepted."""
    return FAMILIES[architecture]
