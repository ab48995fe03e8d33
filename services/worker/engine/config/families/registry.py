"""All families by the names of their architectures."""

from services.worker.engine.config.families import (
    arcee,
    deepseek,
    gemma,
    gpt_oss,
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
    **gpt_oss.FAMILIES,
    **deepseek.FAMILIES,
    **arcee.FAMILIES,
}


# names of the same architecture in files that came with code of their own
OTHER_NAMES = {"MPTForCausalLM": "MptForCausalLM"}


def family_of(architecture: str) -> Family | None:
    """The family of an architecture; None if it is not known."""
    return FAMILIES.get(OTHER_NAMES.get(architecture, architecture))
