"""Chat templates in the shapes of the most used models, written from public descriptions of their prompts.

A file `NAME.jinja` is one, `NAME.WORD.jinja` is another one of the same model with the name `WORD`.
"""

from functools import cache
from pathlib import Path

from services.worker.text.chat_template import ChatTemplate

HERE = Path(__file__).parent
SPECIAL = {"bos_token": "<s>", "eos_token": "</s>"}
NAMES = sorted(path.stem for path in HERE.glob("*.jinja") if "." not in path.stem)


def template_source(name: str) -> str:
    """Returns a template without the line break at the end of its file."""
    return (HERE / f"{name}.jinja").read_text().removesuffix("\n")


def named_sources(name: str) -> dict[str, str]:
    """Returns the templates of a model that have names."""
    found = [path.stem for path in HERE.glob(f"{name}.*.jinja")]
    return {stem.partition(".")[2]: template_source(stem) for stem in sorted(found)}


@cache
def template(name: str) -> ChatTemplate:
    """Returns a compiled template."""
    named = named_sources(name)
    return (
        ChatTemplate(template_source(name), SPECIAL, named=named)
        if named
        else ChatTemplate(template_source(name), SPECIAL)
    )
