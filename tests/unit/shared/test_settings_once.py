"""A setting has one declaration and one default, and a variable that was a setting once is not ignored."""

import ast
import inspect
import re
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path

import pytest
from pydantic import ValidationError
from typer.models import OptionInfo

from cli.stack.options import UpOptions
from services.gateway.settings import GatewaySettings
from services.kvstate.settings import KVStateSettings
from services.router.settings import RouterSettings
from services.worker.settings import WorkerSettings
from shared.client import ClientSettings, InferenceClient
from shared.errors import InvalidRequest
from shared.gone_settings import RenamedTo, describe_gone
from shared.settings import CommonSettings, RyzSettings, load

ROOT = Path(__file__).parents[3]
KINDS: list[type[RyzSettings]] = [
    GatewaySettings, RouterSettings, WorkerSettings, KVStateSettings, ClientSettings
]  # fmt: skip
MOST = 188  # the newest: what stands for a session; a remote server and its key
# The KV state service needs a Redis and takes the usual one; a group goes without unless one is named.
DIFFERENT_ON_PURPOSE = {"RYZ_REDIS_URL"}
VARIABLE = re.compile(r"\bRYZ_\w+")
MAY_NAME = {"docs/decisions/0042-precision.md": {"RYZ_QUANTIZE"}}  # it says that it was renamed


def variable(kind: type[RyzSettings], name: str) -> str:
    return f"{kind.model_config.get('env_prefix')}{name.upper()}"


def declared() -> dict[str, set[type]]:
    """The classes that declare each setting, by its variable."""
    found: dict[str, set[type]] = {}
    for kind in KINDS:
        for name in kind.model_fields:
            owners = {base for base in kind.__mro__ if name in inspect.get_annotations(base)}
            found.setdefault(variable(kind, name), set()).update(owners)
    return found


def test_a_setting_is_declared_in_one_class() -> None:
    twice = {name for name, owners in declared().items() if len(owners) > 1}
    assert twice == DIFFERENT_ON_PURPOSE


def test_there_are_few_settings() -> None:
    assert len(declared()) <= MOST


def test_what_was_a_setting_is_one_or_is_refused() -> None:
    former = (Path(__file__).parent / "former_settings.txt").read_text().split()
    gone = {name for kind in KINDS for name in kind.gone}
    known = declared()
    assert [name for name in former if name not in known and name not in gone] == []
    assert gone.isdisjoint(known)


def names_gone(texts: dict[str, str]) -> list[str]:
    """The pages that name a variable that is gone, each with the variable."""
    gone = {name for kind in KINDS for name in kind.gone}
    named = {where: gone.intersection(VARIABLE.findall(text)) for where, text in texts.items()}
    return sorted(
        f"{where}: {name}" for where, names in named.items() for name in names - MAY_NAME.get(where, set())
    )


def test_no_page_names_a_variable_that_is_gone() -> None:
    """A page says the value of what became a constant. The changelog and decision 0072 list the old names."""
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    texts = {
        str(page.relative_to(ROOT)): page.read_text() for page in pages if not page.name.startswith("0072-")
    }
    assert names_gone(texts) == []


def test_a_page_that_names_one_is_found() -> None:
    texts = {
        "docs/x.md": "for `RYZ_CLIENT_TICK_S`, or `RYZ_CLIENT_TICK_SECONDS` and RYZ_NATS_URL",
        "docs/decisions/0042-precision.md": "`RYZ_QUANTIZE=none` and `RYZ_CLAIM_WAIT_MS`",
    }
    assert names_gone(texts) == [
        "docs/decisions/0042-precision.md: RYZ_CLAIM_WAIT_MS",
        "docs/x.md: RYZ_CLIENT_TICK_S",
    ]


@pytest.mark.parametrize("kind", KINDS)
def test_a_variable_that_is_gone_is_refused_with_its_remedy(kind: type[RyzSettings]) -> None:
    known = declared()
    for name, now in kind.gone.items():
        text = describe_gone(kind.gone, [name, "PATH", "RYZ_NATS_URL"])
        assert text.startswith(f"{name} is gone: ")
        assert text.endswith("; remove it") != isinstance(now, RenamedTo)
        if isinstance(now, RenamedTo):
            assert now in known


@pytest.mark.parametrize("kind", KINDS)
def test_it_ends_the_start_of_the_service(
    kind: type[RyzSettings], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    names = sorted(kind.gone)[:2]
    for name in names:
        monkeypatch.setenv(name, "")
    with pytest.raises(SystemExit) as ended:
        load(kind)
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert said == f"wrong setting: {describe_gone(kind.gone, names)}\n"
    assert all(f"{name} is gone" in said for name in names)


def test_refusals_name_values_with_units_and_new_names() -> None:
    gone = {"RYZ_A_MS": 200.0, "RYZ_B_S": 0.25, "RYZ_C_BYTES": 2**20, "RYZ_D": 3, "RYZ_E": RenamedTo("RYZ_F")}
    assert describe_gone(gone, ["RYZ_X"]) == ""
    assert describe_gone(gone, ["RYZ_D", "RYZ_A_MS"]) == (
        "RYZ_A_MS is gone: it is always 200 ms now; remove it; RYZ_D is gone: it is always 3 now; remove it"
    )
    assert describe_gone(gone, ["RYZ_B_S"]) == "RYZ_B_S is gone: it is always 0.25 s now; remove it"
    assert "always 1048576 bytes now" in describe_gone(gone, ["RYZ_C_BYTES"])
    assert describe_gone(gone, ["RYZ_E"]) == "RYZ_E is gone: it is called RYZ_F now"


def test_the_options_of_ryz_up_have_the_defaults_of_their_settings() -> None:
    """Those that mean the same; where it finds out a value by itself, an option has no default or 0."""
    defaults = {variable(kind, n): info.default for kind in KINDS for n, info in kind.model_fields.items()}
    found_out = {
        "RYZ_MODEL", "RYZ_DRAFT_MODEL", "RYZ_KV_CACHE_TOKENS", "RYZ_NATS_URL", "RYZ_REDIS_URL"
    }  # fmt: skip
    compared = set()
    for field in fields(UpOptions):
        (option,) = (note for note in field.type.__metadata__ if isinstance(note, OptionInfo))  # type: ignore[union-attr]
        name = option.envvar
        if name in defaults and name not in found_out:
            assert field.default == defaults[name], name
            compared.add(name)
    assert {"RYZ_HTTP_PORT", "RYZ_ENGINE", "RYZ_ROUTER_POLICY", "RYZ_LOG_LEVEL"} <= compared


@dataclass
class Feed:
    """An argument that is made of a setting."""

    called: str
    argument: str | int
    setting: str
    where: str


@dataclass
class Parameters:
    """The parameters of a function, or the fields of a class, in their order, and those with a default."""

    names: list[str]
    defaults: set[str]


DEFINED = re.compile(r"^\s*(?:class|def|async def) (\w+)", re.MULTILINE)
NOTHING = {"None", "False", "''"}  # as a default: the argument is left out, which restates no value


def sources() -> dict[str, str]:
    """The text of each file of the services."""
    paths = [path for folder in ("services", "shared", "cli") for path in (ROOT / folder).rglob("*.py")]
    return {str(path.relative_to(ROOT)): path.read_text() for path in sorted(paths)}


def restates(default: ast.expr | None) -> bool:
    """A name as default is that of a constant, which stands elsewhere."""
    return not (default is None or isinstance(default, ast.Name) or ast.unparse(default) in NOTHING)


def parameters_of(node: ast.AST) -> Parameters | None:
    """What a class or a function may be called with."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        given = node.args
        positional = [arg.arg for arg in (*given.posonlyargs, *given.args)]
        defaults: list[tuple[str, ast.expr | None]] = [
            *zip(reversed(positional), reversed(given.defaults), strict=False),
            *zip((arg.arg for arg in given.kwonlyargs), given.kw_defaults, strict=True),
        ]
        names = [*positional, *(arg.arg for arg in given.kwonlyargs)]
        with_default = {name for name, default in defaults if restates(default)}
        return Parameters([name for name in names if name not in {"self", "cls"}], with_default)
    if not isinstance(node, ast.ClassDef):
        return None
    for item in node.body:
        if isinstance(item, ast.FunctionDef) and item.name == "__init__":
            return parameters_of(item)
    own = [
        (item.target.id, item.value)
        for item in node.body
        if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name)
    ]
    return Parameters([name for name, _ in own], {name for name, default in own if restates(default)})


def last_name(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def settings_in(value: ast.expr, names: set[str]) -> list[str]:
    """The settings and constants that an expression reads, as `settings.name` or `constants.name`."""
    return [
        node.attr
        for node in ast.walk(value)
        if isinstance(node, ast.Attribute)
        and node.attr in names
        and last_name(node.value) in {"settings", "_settings", "constants"}
    ]


def feeds(tree: ast.Module, names: set[str], where: str) -> Iterator[Feed]:
    for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
        called = last_name(call.func)
        for index, value in enumerate(call.args):
            for setting in settings_in(value, names):
                yield Feed(called, index, setting, f"{where}:{value.lineno}")
        for keyword in call.keywords:
            for setting in settings_in(keyword.value, names) if keyword.arg else ():
                yield Feed(called, str(keyword.arg), setting, f"{where}:{keyword.value.lineno}")


def second_defaults(texts: dict[str, str]) -> list[str]:
    """Parameters that are fed from a setting, or from a constant beside one, and have a default as well."""
    names = {name for kind in KINDS for name in kind.model_fields}
    names |= {each.name for kind in KINDS if hasattr(kind, "constants") for each in fields(kind.constants)}
    fed = [
        feed
        for where, text in texts.items()
        if "settings." in text or "constants." in text  # only such files are worth the time of parsing
        for feed in feeds(ast.parse(text), names, where)
    ]
    known = definitions_of({feed.called for feed in fed}, texts)
    wrong = []
    for feed in fed:
        target = known.get(feed.called)
        if target is None:
            continue
        name = feed.argument
        if isinstance(name, int):
            name = target.names[name] if name < len(target.names) else ""
        if name in target.defaults:
            wrong.append(f"{feed.where}: {feed.called}({name}) has a default beside {feed.setting}")
    return wrong


def definitions_of(called: set[str], texts: dict[str, str]) -> dict[str, Parameters]:
    """The classes and functions of these names, as far as a name has one definition."""
    found: dict[str, list[Parameters]] = {}
    for text in texts.values():
        if called.isdisjoint(DEFINED.findall(text)):
            continue
        for node in ast.walk(ast.parse(text)):
            parameters = parameters_of(node)
            if parameters is not None and getattr(node, "name", "") in called:
                found.setdefault(node.name, []).append(parameters)  # type: ignore[attr-defined]
    return {name: each[0] for name, each in found.items() if len(each) == 1}


def test_what_is_fed_from_a_setting_has_no_default_of_its_own() -> None:
    assert second_defaults(sources()) == []


def test_a_second_default_is_found() -> None:
    code = """
class Options:
    wait_s: float = 1.0
    other: int = 2

def connect(url, *, patience=3.0): ...

made = Options(wait_s=settings.drain_timeout_s / 2)
placed = Options(1.0, settings.max_running)
connect(url, patience=self._settings.nats_connect_wait_s)
fine = Options(other=3)
"""
    assert [text.partition(": ")[2] for text in second_defaults({"x.py": code})] == [
        "Options(wait_s) has a default beside drain_timeout_s",
        "Options(other) has a default beside max_running",
        "connect(patience) has a default beside nats_connect_wait_s",
    ]


def test_settings_of_all_services_are_not_declared_again() -> None:
    for kind in KINDS[:-1]:
        assert {name: kind.model_fields[name].default for name in CommonSettings.model_fields} == {
            name: info.default for name, info in CommonSettings.model_fields.items()
        }


async def test_a_client_of_its_own_refuses_them_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    """It reads its settings without `load`."""
    monkeypatch.setenv("RYZ_CLIENT_TICK_S", "0.1")
    with pytest.raises(InvalidRequest, match="RYZ_CLIENT_TICK_S is gone"):
        async with InferenceClient.connect("nats://127.0.0.1:1"):
            pass


def test_an_argument_that_is_no_setting_is_refused() -> None:
    with pytest.raises(ValidationError, match="tick_s"):
        ClientSettings(tick_s=0.1)  # type: ignore[call-arg]
