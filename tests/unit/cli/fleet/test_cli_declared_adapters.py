"""Adapters in models files: what is declared, and what is said of a mistake."""

from pathlib import Path

import pytest

from cli.console import CommandError
from cli.stack.fleet.check import checked_models
from cli.stack.fleet.declare import declare
from cli.stack.options import UpOptions

ADAPTERS = "[[models]]\nsource = 'demo'\nadapters = "


def write(folder: Path, text: str) -> Path:
    file = folder / "models.toml"
    file.write_text(text)
    return file


def mistakes(file: Path) -> list[str]:
    """What is said of a file, without its path."""
    options = UpOptions(models=file, kernels="plain")
    with pytest.raises(CommandError) as refused:
        checked_models(options, declare(options, {}), pull=False)
    assert refused.value.exit_code == 2
    return [line.removeprefix(f"{file}:") for line in str(refused.value).splitlines()]


def test_adapters_are_found_beside_the_file(tmp_path: Path) -> None:
    (tmp_path / "fr").mkdir()
    (tmp_path / "fr" / "adapter_config.json").write_text("{}")
    (tmp_path / "de.gguf").write_bytes(b"GGUF")
    file = write(
        tmp_path,
        """
        [[models]]
        source = "demo"
        adapters = [{ name = "fr", source = "fr" }, { name = "de", source = "de.gguf" }]
        """,
    )
    options = UpOptions(models=file, kernels="plain")
    (model,) = checked_models(options, declare(options, {}), pull=False)
    found = [(one.name, one.source) for one in model.entry.adapters]
    assert found == [("fr", str(tmp_path / "fr")), ("de", str(tmp_path / "de.gguf"))]


def test_an_adapter_with_the_name_of_a_model_is_a_mistake(tmp_path: Path) -> None:
    (tmp_path / "a.gguf").write_bytes(b"GGUF")
    adapters = "adapters = [{ name = 'fr', source = 'a.gguf' }]\n"
    file = write(
        tmp_path,
        f"[[models]]\nsource = 'demo'\n{adapters}"
        "[[models]]\nname = 'other'\nsource = 'demo'\naliases = ['demo:fr']",
    )
    assert mistakes(file) == [
        "3: demo: the adapter 'demo:fr' has the name of a model or an alias: change one."
    ]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (ADAPTERS + "[{ name = 'a:b', source = '/x' }]", "3: demo: `adapters.name`: 'a:b' is no name: it"),
        (ADAPTERS + "[{ source = '/x' }]", "3: demo: `adapters.name` is missing: a name such as `name ="),
        (ADAPTERS + "[{ name = 'a' }]", "3: demo: `adapters.source` is missing: a PEFT directory or a GGUF"),
        (ADAPTERS + "['a']", '3: demo: `adapters` must be a table, such as `{ name = "fr", '),
        (
            ADAPTERS + "[{ name = 'a', source = '/x', path = 3 }]",
            "3: demo: `adapters.path` is no field of an adapter; did you mean `source`?",
        ),
        (
            ADAPTERS + "[\n{ name = 'a', source = '/x' },\n{ name = 'a', source = '/y' }]",
            "3: demo: `adapters`: the name 'a' is there twice: change one.",
        ),
        (
            ADAPTERS + "[{ name = 'a', source = '/nowhere/at/all' }]",
            "3: demo: adapter 'a': there is no /nowhere/at/all: name a PEFT directory or a GGUF file.",
        ),
        (ADAPTERS + "[{ name = 'a', source = '/' }]", "3: demo: adapter 'a': / has no adapter_config.json"),
        (ADAPTERS + "[{ name = 'a', source = '/dev/null' }]", "3: demo: adapter 'a': /dev/null is no GGUF"),
    ],
)
def test_each_mistake_is_one_sentence(tmp_path: Path, text: str, said: str) -> None:
    (found,) = mistakes(write(tmp_path, text))
    assert found.startswith(said)
