"""A public class has a name of its own, so that a search finds one thing."""

import ast
from collections import defaultdict

from tests.kits.servers import ROOT

# what each of these means is what its own field calls it
TWICE = {
    "Load",  # a command to a host's agent, and the load of a group
    "Reply",  # to an HTTP request, and of an engine of others
    "TokenLogprob",  # of our messages, and of the APIs of others
}


def test_no_other_name_stands_for_two_classes() -> None:
    files = defaultdict(set)
    for top in ("cli", "services", "shared", "tools"):
        for path in (ROOT / top).rglob("*.py"):
            if path.name.endswith("_pb2.py"):
                continue
            for node in ast.parse(path.read_text()).body:
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    files[node.name].add(path)
    assert len(files) > 1000
    assert {name for name, found in files.items() if len(found) > 1} == TWICE
