"""What the code of this project must never do, read from its syntax, since no run can show an absence.

Each rule names the published vulnerability that it prevents; the table is in docs/security.md.
"""

import ast
import re
import warnings
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from jinja2.sandbox import ImmutableSandboxedEnvironment

from services.worker.text.template_guard import GuardedEnvironment

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    import sre_constants  # the parser has no public names
    import sre_parse

ROOT = Path(__file__).parents[3]
SERVED = ("shared", "services")  # what the images contain
OURS = (*SERVED, "cli", "deploy")
# Formats and modules whose data is code: CVE-2025-32444, CVE-2025-47277, CVE-2025-29783, CVE-2026-3059 ...
CODE_AS_DATA = {
    "pickle", "_pickle", "cPickle", "cloudpickle", "dill", "marshal", "shelve", "joblib", "jsonpickle",
    "pandas", "yaml", "transformers", "huggingface_hub", "zmq",
}  # fmt: skip
# `ryz models pull` takes addresses and bytes from the Hub: no service imports it, and no file is executed.
HUB_CLIENT = ("cli/models/hub.py", "cli/models/hub_errors.py")
# KV events of vLLM come over ZeroMQ, as bytes for msgspec (`OBJECTS` has the call that unpickles).
KV_EVENTS = tuple(f"services/worker/guests/kv_events/{name}.py" for name in ("subscriber", "own_vllm"))
# In the process and environment of vLLM, which loads the tokenizer as this does, without code of the model.
VLLM_CHILD = ("services/worker/guests/vllm/vllm_child/engine.py",)
# Calls that execute their argument or read pickles: CVE-2025-9141, CVE-2025-24357, CVE-2025-30165 ...
RUNS_ITS_DATA = {
    "eval", "exec", "compile", "__import__", "torch.load", "torch.hub.load", "torch.jit.load", "numpy.load",
    "np.load", "os.system", "os.popen", "subprocess.getoutput", "subprocess.getstatusoutput",
}  # fmt: skip
OBJECTS = {"all_gather_object", "gather_object", "scatter_object_list", "broadcast_object_list", "recv_pyobj",
           "send_pyobj", "recv_object_list", "get_class_from_dynamic_module"}  # fmt: skip
# Modules that could fetch an address from a request: CVE-2025-6242, CVE-2026-24779, CVE-2026-34753.
FETCHES = {"httpx", "requests", "aiohttp", "urllib.request", "http.client", "urllib3", "ftplib", "smtplib"}


def files(*folders: str) -> list[Path]:
    return [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]


@cache
def nodes(path: Path) -> list[ast.AST]:
    return list(ast.walk(ast.parse(path.read_text())))


def trees(*folders: str) -> Iterator[tuple[str, ast.AST]]:
    for path in files(*folders):
        name = str(path.relative_to(ROOT))
        for node in nodes(path):
            yield f"{name}:{getattr(node, 'lineno', 0)}", node


def imported(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom) and node.module and not node.level:
        return [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    return []


def named(node: ast.AST) -> str:
    """Returns `a.b.c` for a call's function, or an empty string if it has no such name."""
    if isinstance(node, ast.Attribute):
        before = named(node.value)
        return f"{before}.{node.attr}" if before else f".{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def calls(*folders: str) -> Iterator[tuple[str, ast.Call, str]]:
    for where, node in trees(*folders):
        if isinstance(node, ast.Call):
            yield where, node, named(node.func)


def test_the_walk_sees_the_code() -> None:
    """The walk finds calls and imports that are known to exist, so an empty result below has a meaning."""
    names = {name for _, _, name in calls(*OURS)}
    assert {"socket.create_server", "subprocess.Popen", "hmac.compare_digest", "re.compile"} <= names
    modules = {name for _, node in trees(*OURS) for name in imported(node)}
    assert {"msgspec", "torch", "jinja2.sandbox", "httpx"} <= modules


def test_no_format_is_read_whose_data_is_code() -> None:
    found = [
        f"{where}: {name}"
        for where, node in trees(*OURS)
        for name in imported(node)
        if name.partition(".")[0] in CODE_AS_DATA
        and not (name.startswith("huggingface_hub") and where.partition(":")[0] in HUB_CLIENT)
        and not (name.startswith("zmq") and where.partition(":")[0] in KV_EVENTS)
        and not (name.startswith("transformers") and where.partition(":")[0] in VLLM_CHILD)
    ]
    assert found == []


def test_nothing_runs_what_it_is_given() -> None:
    found = [
        f"{where}: {name}"
        for where, _, name in calls(*OURS)
        if name in RUNS_ITS_DATA or name.rpartition(".")[2] in OBJECTS
    ]
    assert found == []


def test_no_shell_gets_a_command_line() -> None:
    found = []
    for where, call, name in calls(*OURS):
        shell = [word.value for word in call.keywords if word.arg == "shell"]
        if name.endswith("create_subprocess_shell") or any(
            not (isinstance(value, ast.Constant) and value.value is False) for value in shell
        ):
            found.append(f"{where}: {name}")
    assert found == []


def test_services_have_no_http_client_but_those_of_identity_provider_and_guests() -> None:
    """Their addresses are settings: `jwks_uri` has to be HTTPS as well, guests are on the list of hosts.

    Neither follows redirects.
    """
    found = [
        f"{where}: {name}"
        for where, node in trees(*SERVED)
        for name in imported(node)
        if name in FETCHES or name.partition(".")[0] in FETCHES
    ]
    assert [one.partition(":")[0].rpartition("/")[2] for one in found] == [
        "oidc_keys.py",
        "remote_http.py",
    ], found


def test_modules_are_never_chosen_by_data() -> None:
    """`import_module` takes a literal: no `auto_map` of a model is code (CVE-2025-66448, CVE-2026-22807)."""
    found = [
        f"{where}: {name}"
        for where, call, name in calls(*SERVED)
        if name.endswith("import_module") and not isinstance(call.args[0], ast.Constant)
    ]
    assert found == []


def test_templates_run_in_the_sandbox_only() -> None:
    """CVE-2026-5760 rendered a model's template without a sandbox; CVE-2025-61620 took one from a request."""
    made = {name.rpartition(".")[2] for _, _, name in calls(*SERVED) if name.endswith("Environment")}
    assert made == {"GuardedEnvironment"}
    assert issubclass(GuardedEnvironment, ImmutableSandboxedEnvironment)
    assert not [name for _, _, name in calls(*SERVED) if name in {"Template", "jinja2.Template"}]


@pytest.mark.parametrize(
    "folder", ["services/gateway", "services/kvstate", "shared/codec.py", "shared/redis_accounts.py"]
)
def test_no_check_of_input_is_an_assert(folder: str) -> None:
    """`python -O` removes asserts (CVE-2026-41523). The remaining ones are for the type checker."""
    paths = [ROOT / folder] if folder.endswith(".py") else files(folder)
    for path in paths:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Assert):
                test = ast.unparse(node.test)
                assert re.search(r" is not None$|^isinstance\(", test), f"{path.name}:{node.lineno}: {test}"


def patterns() -> list[tuple[str, str]]:
    """Returns every literal regular expression with its file, also `pattern=` of a setting or a field."""
    found = []
    for where, call, name in calls(*OURS):
        texts = [word.value for word in call.keywords if word.arg == "pattern"]
        if name.startswith("re.") and call.args:
            texts.append(call.args[0])
        found += [
            (where, one.value)
            for one in texts
            if isinstance(one, ast.Constant) and isinstance(one.value, str)
        ]
    return found


def flat(parsed: Any) -> Iterator[Any]:
    """Yields the parts of a parsed pattern, with each group replaced by its parts."""
    for part in parsed:
        if part[0] is sre_constants.SUBPATTERN:
            yield from flat(part[1][-1])
        else:
            yield part


def repeats_in_repeats(parsed: Any, inside: bool = False) -> bool:
    """Returns whether an unbounded repetition contains another one that may match in more than one way."""
    for operator, argument in flat(parsed):
        if operator in (sre_constants.MAX_REPEAT, sre_constants.MIN_REPEAT):
            _, most, body = argument
            unbounded = most == sre_constants.MAXREPEAT
            # such as `(\.x+)*`: every round begins with a literal
            separated = any(part[0] is sre_constants.LITERAL for part in flat(body))
            if (inside and unbounded) or repeats_in_repeats(body, (inside or unbounded) and not separated):
                return True
        elif operator is sre_constants.BRANCH and any(
            repeats_in_repeats(branch, inside) for branch in argument[1]
        ):
            return True
    return False


@pytest.mark.parametrize(
    ("pattern", "bad"),
    [
        (r"(a+)+$", True),
        (r"(a|b+)*", True),
        (r"((x*)[yz]?)+", True),
        (r"[a-z]+(\.[a-z]+)*", False),
        (r"\d+:\d+", False),
    ],
)
def test_the_look_at_patterns_tells_them_apart(pattern: str, bad: bool) -> None:
    assert repeats_in_repeats(sre_parse.parse(pattern)) is bad


def test_no_pattern_can_backtrack_without_end() -> None:
    """CVE-2025-48887 and GHSA-j828-28rj-hfhp were nested quantifiers over what callers or models write."""
    assert len(patterns()) > 20
    assert [
        f"{where}: {text}" for where, text in patterns() if repeats_in_repeats(sre_parse.parse(text))
    ] == []
