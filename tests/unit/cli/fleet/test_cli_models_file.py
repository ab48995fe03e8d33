"""Models files: what they declare, and that every mistake in one is said with its line, all at once."""

from pathlib import Path

import pytest

from cli.console import CommandError
from cli.stack.fleet.check import checked_models
from cli.stack.fleet.declare import declare
from cli.stack.fleet.models_file import read_models_file
from cli.stack.fleet.toml_lines import line_of, lines_of
from cli.stack.machine import settle_sizing
from cli.stack.options import UpOptions


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


def test_an_entry_has_what_the_file_says_and_the_name_of_its_source(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    file = write(
        tmp_path,
        """
        [[models]]
        source = "demo"
        aliases = ["gpt-4o", "small-*"]
        tenants = ["acme", "own_2"]
        sampling = { temperature = 0.2, top_k = 40 }

        [[models]]
        name = "second"
        source = "demo"
        precision = "fp32"
        load = "demand"
        sleep_after_s = 600
        priority = -3
        groups = 3
        min_groups = 2
        tensor_parallel = 2
        threads = 0
        cores = 2
        kv_cache_tokens = 0
        kv_cache_min_tokens = 4096
        sampling = "openai"
        """,
    )
    options = UpOptions(models=file, kernels="plain")
    first, second = checked_models(options, declare(options, {}), pull=False)
    assert (first.name, first.entry.aliases) == ("demo", ("gpt-4o", "small-*"))
    assert first.entry.tenants == ("acme", "own_2")
    assert first.entry.sampling == "temperature=0.2,top_k=40"
    assert first.path == second.path
    assert second.entry.model_dump(exclude={"source"}) == {
        "name": "second", "aliases": (), "adapters": (), "tenants": (), "draft_model": "",
        "tool_format": "",
        "sampling": "openai", "groups": 3, "min_groups": 2, "tensor_parallel": 2, "threads": 0, "cores": 2,
        "precision": "fp32", "kv_cache_tokens": 0, "kv_cache_min_tokens": 4096, "load": "demand",
        "pinned": False, "priority": -3, "sleep_after_s": 600.0, "remote": "", "remote_model": "",
        "key_file": "",
    }  # fmt: skip


def test_paths_begin_at_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    said = mistakes(write(tmp_path, '[[models]]\nsource = "./mine"\n'))
    assert said[0].startswith(
        f"2: ./mine: There is no file or directory {tmp_path / 'mine'}, and the catalog"
    )


def test_all_mistakes_are_said_at_once_with_their_lines(tmp_path: Path) -> None:
    file = write(
        tmp_path,
        '''modles = 1
[[models]]
source = "demo"
aliases = ["second", "both", "demo"]
precsion = "int8"

[[models]]
name = "second"
source = "demo"
aliases = [
  "demo",
  "both",
]
groups = "2"
threads = true
sampling = { temperatur = 1 }
kv_cache_tokens = -1
precision = "fp8"

[[models]]
name = "second"
source = "nowhere"

[[models]]
name = "bad name"

[[models]]
name = """fifth"""
source = "demo"
tensor_parallel = 5
draft_model = "no draft"
tool_format = "smoke"
aliases = ["twice", "twice"]
''',
    )
    said = mistakes(file)
    assert said[0] == f"The models file has {len(said) - 1} mistakes:"
    expected = [
        "1: `modles` is no field of a models file; did you mean `models`?",
        "4: demo: the alias 'second' is the name of another model (line 8): remove it, or change that name.",
        "4: demo: the alias 'demo' is the model's own name: remove it.",
        "5: demo: `precsion` is no field of a model; did you mean `precision`?",
        "10: second: the alias 'demo' is the name of another model (line 2): remove it, or change that name.",
        "10: second: the alias 'both' is one of 'demo' already (line 4): remove one.",
        "14: second: `groups` must be a whole number, got '2'.",
        "15: second: `threads` must be a whole number, got true.",
        "16: second: `sampling`: must be `openai`, or `NAME=NUMBER,...` with the names temperature, top_p, "
        "top_k, min_p, repetition_penalty; got 'temperatur=1'.",
        "17: second: `kv_cache_tokens` must be 0 or more, got -1.",
        "18: second: `precision` must be 'auto', 'fp32', 'bf16', 'int8' or 'codes', got 'fp8'.",
        "21: second: the name 'second' is that of another model (line 8): change one `name`.",
        "24: bad name: `source` is missing: a name of the catalogue, `hf:OWNER/NAME` or a path, such as "
        '`source = "demo"`.',
        "25: bad name: `name`: 'bad name' is no name: it needs 1 to 128 printable characters, without "
        "spaces, control characters and marks of text direction.",
        "33: fifth: `aliases`: 'twice' is there twice.",
    ]
    assert [line for line in said if line in expected] == expected
    others = [line for line in said[1:] if line not in expected]
    assert [line.partition(": ")[0] for line in others] == ["22", "30", "31", "32"]
    assert others[0].startswith("22: second: There is no file or directory")
    assert others[1].startswith("30: fifth: `tensor_parallel` 5: ")
    assert others[2].startswith("31: fifth: There is no file or directory")
    assert others[3].startswith("32: fifth: `tool_format`: there is no form 'smoke'")


def test_nothing_is_fetched_for_a_file_with_a_mistake(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RYZ_MODELS_DIR", str(tmp_path / "models"))
    file = write(tmp_path, '[[models]]\nsource = "smollm2-135m"\n[[models]]\nsource = "nothing"\nx = 1\n')
    options = UpOptions(models=file, kernels="plain")
    with pytest.raises(CommandError, match=r"The models file has 2 mistakes") as refused:
        checked_models(options, declare(options, {}), pull=True)
    assert "smollm2-135m is not here yet" not in str(refused.value), "it would have been fetched"
    with pytest.raises(
        CommandError, match=r":2: smollm2-135m: The model smollm2-135m is not here yet"
    ) as refused:
        checked_models(options, declare(options, {}), pull=False)
    assert "The models file has 3 mistakes" in str(refused.value)
    assert not (tmp_path / "models").exists()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", '1: there is no model: write `[[models]]` and below it `source = "smollm2-135m"`.'),
        ("models = 3", '1: `models` must be tables: `[[models]]` and below it `source = "smollm2-135m"`.'),
        ("[models]\nsource = 'demo'", "1: `models` must be tables"),
        ("a = 1\n[[models]]\nsource = 'demo", "3: this is no TOML: "),
        ("[[models]]\nsource = demo", "2: this is no TOML: Invalid value; text stands in quotes"),
        ("[[models]]\nsource = 'demo'\nmodel = 'a'", "3: demo: `model` is no field of a model; did you mean"),
        ("[[models]]\nsource = 'demo'\nalias = 'a'", "3: demo: `alias` is no field of a model; did you mean"),
        (
            "[[models]]\nsource = 'demo'\ngroups = { min = 1 }",
            "3: demo: `groups` must be a whole number, got {'min': 1}; so many groups run at least with",
        ),
        ("[[models]]\nsource = 7", "2: model 1: `source` must be text in quotes, got 7."),
        ("[[models]]\nsource = ''", "2: model 1: `source` is empty: give a name"),
        ("[[models]]\nsource = 'demo'\naliases = 'a'", '3: demo: `aliases` must be a list, such as `["one'),
        ("[[models]]\nsource = 'demo'\naliases = ['a,b']", "3: demo: `aliases`: 'a,b' is no alias: it"),
        ("[[models]]\nsource = 'demo'\ntenants = []", "3: demo: `tenants`: an empty list lets no tenant"),
        ("[[models]]\nsource = 'demo'\ntenants = ['a', 'a']", "3: demo: `tenants`: 'a' is there twice"),
        ("[[models]]\nsource = 'demo'\ntenants = ['a.b']", "3: demo: `tenants` must be letters, digits,"),
        ("[[models]]\nsource = 'demo'\nzzz = 1", "3: demo: `zzz` is no field of a model; there are"),
        ("models = [{source = 'demo', zzz = 1}]", "1: demo: `zzz` is no field of a model"),
        ("[[models]]\nsource = 'hf:nonsense'", "2: hf:nonsense: hf:nonsense is no model's name on the Hub"),
        ("[[models]]\nsource = 'demo'\nkv_cache_tokens = 9", "3: demo: A KV cache of 9 tokens is too small"),
        (
            "[[models]]\nsource = 'demo'\nkv_cache_tokens = 4096\n\nkv_cache_min_tokens = 8192",
            "5: demo: `kv_cache_min_tokens`: it is more than `kv_cache_tokens`",
        ),
        ("[[models]]\nsource = 'demo'\nprecision = 'int8'", "3: demo: precision int8 needs the compiled"),
    ],
)  # fmt: skip
def test_each_mistake_is_one_sentence(tmp_path: Path, text: str, said: str) -> None:
    file = write(tmp_path, text)
    options = UpOptions(models=file, kernels="plain")

    def settle() -> None:
        declared = declare(options, {})
        settle_sizing(options, checked_models(options, declared, pull=False), declared)

    with pytest.raises(CommandError) as refused:
        settle()
    assert str(refused.value).removeprefix(f"{file}:").startswith(said)
    assert "\n" not in str(refused.value)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(CommandError, match=r"models file .*/none\.toml cannot be read: No such file"):
        read_models_file(tmp_path / "none.toml")
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    with pytest.raises(CommandError, match="is no text in UTF-8"):
        read_models_file(tmp_path / "binary")


def test_lines_are_those_of_tables_and_keys_and_not_of_what_is_inside_values() -> None:
    text = (
        '# [[models]]\ntitle = """\n[[models]]\nname = "x" """\n[[models]]\nname = "a" # b = 1\n'
        "list = [\n  'x', # [\n  'y[',\n]\n[models.sampling]\ntemperature = 0.1\n[[models]]\n"
        "\"source\" = 'b'\nother = '''\n[[models]]\n'''\nsampling.top_k = 4\nlast = {a = 1, b = [2]}\n"
    )
    lines = lines_of(text)
    assert lines == {
        ("title",): 2, ("models", 0): 5, ("models", 0, "name"): 6, ("models", 0, "list"): 7,
        ("models", 0, "sampling"): 11, ("models", 0, "sampling", "temperature"): 12, ("models", 1): 13,
        ("models", 1, "source"): 14, ("models", 1, "other"): 15, ("models", 1, "sampling"): 18,
        ("models", 1, "sampling", "top_k"): 18, ("models", 1, "last"): 19,
    }  # fmt: skip
    assert line_of(("models", 0, "list", 1), lines) == 7
    assert line_of(("models", 0, "missing"), lines) == 5
    assert line_of(("else",), lines) == 1


@pytest.mark.parametrize(
    ("changes", "environ", "said"),
    [
        ({"model": [Path("demo")]}, {}, r"`--model` and `--models .*` both say what is served"),
        ({}, {"RYZ_MODEL": "demo"}, "RYZ_MODEL and `--models"),
        ({"precision": "int8", "groups": 2}, {}, r"`--groups` and `--precision` \(RYZ_PRECISION\) and"),
        ({"draft_model": Path("demo")}, {}, r"`--draft-model` \(RYZ_DRAFT_MODEL\) and"),
        ({"kv_cache_tokens": 0}, {}, r"`--kv-cache-tokens`"),
        ({}, {"RYZ_MODEL_TENANTS": "a"}, "write `tenants` of the models in the file"),
        ({}, {"RYZ_MODEL_ALIASES": "a=demo"}, "write the names as `aliases` of their models in the file"),
    ],
)  # fmt: skip
def test_a_file_and_options_of_one_model_contradict_each_other(
    tmp_path: Path, changes: dict[str, object], environ: dict[str, str], said: str
) -> None:
    file = write(tmp_path, '[[models]]\nsource = "demo"\n')
    with pytest.raises(CommandError, match=said) as refused:
        declare(UpOptions(models=file, **changes), environ)  # type: ignore[arg-type]
    assert refused.value.exit_code == 2


@pytest.mark.parametrize("name", ["model_name", "draft_model", "tool_format"])
def test_options_of_one_model_are_refused_for_several(name: str) -> None:
    two = [Path("demo"), Path("other")]
    with pytest.raises(CommandError, match=rf"`--{name.replace('_', '-')}` .* is for one model"):
        declare(UpOptions(model=two, **{name: "x"}), {})  # type: ignore[arg-type]
    declared = declare(UpOptions(model=two, precision="int8", groups=1), {"RYZ_MODEL": "third"})
    assert [entry.source for entry in declared.entries.values()] == ["demo", "other"]
    assert {(entry.precision, entry.groups) for entry in declared.entries.values()} == {("int8", 1)}


def test_several_models_of_options_are_all_looked_for() -> None:
    options = UpOptions(model=[Path("demo"), Path("demo"), Path("nothing")])
    with pytest.raises(CommandError) as refused:
        checked_models(options, declare(options, {}), pull=False)
    first, second = str(refused.value).splitlines()
    assert first.startswith("demo: the name 'demo' is that of another model: in a models file")
    assert second.startswith("nothing: There is no file or directory nothing")
    one = declare(UpOptions(model_name="mine"), {"RYZ_MODEL": "./demo", "RYZ_MODEL_TENANTS": "a,b"})
    assert one.entries[0].tenants == ("a", "b")
    assert one.entries[0].source == str(Path("demo").absolute())
    assert one.entries[0].name == "mine"
    assert declare(UpOptions(), {}).is_open


def test_fields_that_contradict_each_other_are_a_mistake_like_others(tmp_path: Path) -> None:
    file = write(tmp_path, """
        [[models]]
        source = "demo"
        pinned = true
        sleep_after_s = 20
        precision = "int7"
    """)  # fmt: skip
    with pytest.raises(CommandError) as refused:
        declare(UpOptions(models=file), {}).refuse_problems()
    text = str(refused.value)
    assert "`pinned` and `sleep_after_s` contradict each other" in text
    assert "`precision`" in text
