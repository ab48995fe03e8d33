"""`python -m benchmarks.libraries [--rounds N] [PART ...]`: own code beside libraries, in turns; medians."""

import argparse
import importlib
from importlib.metadata import version

import uvloop

PARTS = {"bus": "bus_side", "jetstream": "jetstream_side", "spans": "span_side", "http": "http_side"}
VERSIONS = ("nats-py", "uvicorn", "httptools", "opentelemetry-sdk", "uvloop")


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description="Measures own code beside the libraries that do the same.")
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"some of: {', '.join(PARTS)}")
    parser.add_argument("--rounds", type=int, default=7, help="how often each side runs")
    given = parser.parse_args()
    unknown = set(given.parts) - set(PARTS)
    if unknown:
        parser.error(f"there is no {', '.join(sorted(unknown))}; the parts are {', '.join(PARTS)}")
    print(", ".join(f"{name} {version(name)}" for name in VERSIONS))
    for part in given.parts or PARTS:
        uvloop.run(importlib.import_module(f"benchmarks.libraries.{PARTS[part]}").measure(given.rounds))


if __name__ == "__main__":
    main()
