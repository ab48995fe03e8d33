"""The libraries, and the tests that fail if a new version no longer fits our code. Pure."""

import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LibraryGroup:
    """Libraries that the same tests judge.

    Attributes:
        libraries: Their distributions.
        tests: Paths of the tests.
    """

    libraries: tuple[str, ...]
    tests: tuple[str, ...]


GROUPS: dict[str, LibraryGroup] = {
    "bus": LibraryGroup(
        ("nats-py",),
        (
            "tests/unit/shared/bus",
            "tests/contract/test_bus.py",
            "tests/contract/stores/test_file_store.py",
            "tests/integration/bus",
        ),
    ),
    "http": LibraryGroup(
        ("uvicorn", "httptools", "websockets", "uvloop", "starlette"),
        (
            "tests/unit/shared/http",
            "tests/integration/gateway/connections",
            "tests/integration/gateway/realtime",
        ),
    ),
    "spans": LibraryGroup(
        ("opentelemetry-sdk", "opentelemetry-exporter-otlp-proto-http", "urllib3"),
        (
            "tests/unit/shared/telemetry/test_otlp_encoding.py",
            "tests/unit/shared/telemetry/test_spans.py",
            "tests/integration/gateway/test_gateway_traces.py",
        ),
    ),
    "codec": LibraryGroup(
        ("msgspec", "msgpack"),
        (
            "tests/contract/test_codec.py",
            "tests/contract/test_golden.py",
            "tests/contract/test_plain_data.py",
            "tests/unit/shared/bus/test_shared_codec_bounds.py",
        ),
    ),
}


def wanted_versions(given: list[str]) -> dict[str, list[str]]:
    """Returns the requirements to install, by group.

    Args:
        given: Requirements such as `uvicorn==0.53.0`; none: the newest version of each library.

    Raises:
        ValueError: One of them names another library.
    """
    if not given:
        return {name: list(group.libraries) for name, group in GROUPS.items()}
    found: dict[str, list[str]] = {}
    for one in given:
        library = re.split("[=<>~! ]", one, maxsplit=1)[0]
        names = [name for name, group in GROUPS.items() if library in group.libraries]
        if not names:
            known = ", ".join(each for group in GROUPS.values() for each in group.libraries)
            raise ValueError(f"{library!r} is none of {known}")
        found.setdefault(names[0], []).append(one)
    return found
