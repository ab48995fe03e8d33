"""The model's defaults of sampling, and where each comes from, as `ryz models show` prints them."""

import os
from dataclasses import dataclass
from pathlib import Path

from cli.console import fail
from cli.models.catalogue import known_file

_SETTINGS = ("RYZ_SAMPLING_DEFAULTS", "RYZ_SAMPLING_FALLBACK")


@dataclass(frozen=True, slots=True)
class SamplingFact:
    """The value of a parameter where a request gives none.

    Attributes:
        source: The setting, the model's files, the catalogue, or `Ryzanstein`.
    """

    value: float
    source: str


def sampling_facts(path: Path) -> dict[str, SamplingFact]:
    """Return the defaults by parameter, as groups that `ryz up` starts from this shell would have them.

    Raises:
        CommandError: A setting has no such form.
        InvalidRequest: A file of the model has a value that sampling does not have.
    """
    from services.worker.model_files.sampling_defaults import (  # noqa: PLC0415 (quick `--help`)
        LAST,
        defaults_of_files,
        parse_sampling,
    )
    from shared.messages.generate import DEFAULTED  # noqa: PLC0415

    given = {name: os.environ.get(name, "") for name in _SETTINGS}
    known, parsed = known_file(path), {}
    for name, text in given.items():
        try:
            parsed[name] = parse_sampling(text)
        except ValueError as error:
            fail(f"{name} {error}.", 2)
    own, fallback = _SETTINGS
    recommended = "" if given[fallback] or known is None else known.sampling
    sources = {
        own: parsed[own],
        "the model's files": defaults_of_files(path),
        fallback: parsed[fallback],
        "the catalogue": parse_sampling(recommended),
        "Ryzanstein": LAST,
    }
    return {
        name: next(
            SamplingFact(value, source)
            for source, defaults in sources.items()
            if (value := getattr(defaults, name)) is not None
        )
        for name in DEFAULTED
    }


def sampling_text(facts: dict[str, SamplingFact]) -> str:
    """Return the defaults that do something as one line, with their sources."""
    neutral = {"top_p": 1.0, "top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0}
    shown = {name: fact for name, fact in facts.items() if fact.value != neutral.get(name)}
    return ", ".join(f"{name} {fact.value:g} ({fact.source})" for name, fact in shown.items())
