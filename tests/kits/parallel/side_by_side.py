"""Distributes tests over parallel processes and orders them.

All tests of a file run in one process, so that module fixtures are made once. Files that use the same package
stack run in one process, too. Half of the processes begin with files that start services and wait for them,
others with files that compute. Long files begin before short ones, which fill the gaps at the end.
"""

import os
from collections.abc import Iterable

import pytest
from xdist.scheduler import LoadScopeScheduling
from xdist.workermanage import WorkerController

# Rough times of the longest test files, in seconds on two cores; others count as zero. Only the order depends
# on them.
SECONDS = {
    "tests/e2e/test_cutoffs.py": 90,
    "tests/e2e/test_sessions.py": 60,
    "tests/e2e/test_conversation.py": 30,
    "tests/e2e/test_bus_users.py": 30,
    "tests/e2e/benches/test_bench_sessions.py": 60,
    "tests/e2e/starts/test_up_down.py": 50,
    "tests/e2e/test_chat_resumes.py": 40,
    "tests/e2e/starts/test_foreign_folder.py": 40,
    "tests/e2e/test_overflow.py": 40,
    "tests/e2e/test_security.py": 40,
    "tests/e2e/starts/test_two_stacks.py": 40,
    "tests/e2e/clients/test_clients.py": 50,
    "tests/e2e/models/test_models_on_demand.py": 55,
    "tests/chaos/test_failover.py": 60,
    "tests/chaos/test_broker.py": 60,
    "tests/chaos/test_rolling_restart.py": 40,
    "tests/chaos/test_kv_tier.py": 60,
    "tests/chaos/fuzz/test_fuzz_bus.py": 50,
    "tests/chaos/fuzz/test_fuzz_http.py": 50,
    "tests/chaos/test_models_come_and_go.py": 50,
    "tests/chaos/test_storm.py": 60,
    "tests/chaos/network/test_cut.py": 50,
    "tests/chaos/test_only_group.py": 40,
    "tests/chaos/test_router_killed.py": 50,
    "tests/chaos/answers/test_schemas.py": 50,
    "tests/chaos/doors/test_bad_demands_beside_others.py": 30,
    "tests/contract/corpus/test_recorded.py": 45,
    "tests/contract/corpus/test_transports.py": 30,
    "tests/integration/bus/test_outside_users.py": 45,
    "tests/integration/cli/test_cli_groups.py": 25,
    "tests/integration/cli/test_sbom.py": 15,
    "tests/integration/engine/test_demo_model.py": 15,
    "tests/integration/engine/test_engine_collectives.py": 40,
    "tests/integration/engine/test_engine_failures.py": 25,
    "tests/integration/engine/test_engine_fork_server.py": 30,
    "tests/integration/engine/test_engine_two_hosts.py": 15,
    "tests/integration/gateway/connections/test_gateway_idle_sockets.py": 30,
    "tests/integration/gateway/connections/test_gateway_readers.py": 30,
    "tests/integration/gateway/models/test_gateway_manage_models.py": 30,
    "tests/integration/gateway/realtime/test_realtime.py": 30,
    "tests/integration/gateway/responses/test_responses_stack.py": 40,
    "tests/integration/gateway/streams/test_gateway_streams.py": 70,
    "tests/integration/training/test_finetune.py": 30,
    "tests/integration/training/test_finetune_command.py": 60,
    "tests/integration/worker/test_worker_adapters.py": 35,
    "tests/integration/worker/turns/test_turns_order.py": 60,
    "tests/unit/bench/test_bench_collectives.py": 10,
    "tests/unit/bench/test_bench_engine.py": 30,
    "tests/unit/bench/test_bench_peers.py": 10,
    "tests/unit/bench/test_bench_streams.py": 10,
    "tests/unit/engine/families/test_families.py": 30,
    "tests/unit/engine/test_engine_kv_cold.py": 12,
    "tests/unit/engine/test_engine_model.py": 20,
    "tests/unit/engine/test_engine_prompts.py": 9,
    "tests/unit/worker/grammars/test_worker_grammar_walks.py": 10,
    "tests/unit/worker/grammars/test_worker_schema_enforcement.py": 7,
}


STACK_FOLDERS = ("e2e", "chaos", "integration")
# A stack is stopped when its process goes on to another folder.
SHARED_STACKS = {
    "tests/e2e/conftest.py": (
        "bus_users", "chat_page", "clients/test_bad_demands", "conversation", "cutoffs", "garbage",
        "recorded_scrapes", "sessions", "story",
    ),
    "tests/chaos/conftest.py::pair": ("broker", "failover", "failover_http", "rolling_restart"),
    "tests/chaos/conftest.py::chaos": ("kv_tier", "redis_and_group"),
    "tests/contract/corpus/conftest.py": ("recorded", "transports"),
    "tests/integration/worker/turns/conftest.py": (
        "turns_conditions", "turns_order", "turns_repeated", "turns_undelivered",
    ),
}  # fmt: skip
# Processes that compute give way to services under test, some of which have time limits.
COMPUTING_NICENESS = 5
_STACK_OF = {
    f"{stack.partition('/conftest.py')[0]}/{name if '/' in name else f'test_{name}'}.py": stack
    for stack, names in SHARED_STACKS.items()
    for name in names
}
_SECONDS = {_STACK_OF.get(file, file): 0 for file in SECONDS}
for _file, _seconds in SECONDS.items():
    _SECONDS[_STACK_OF.get(_file, _file)] += _seconds


def scope_of(nodeid: str) -> str:
    """Returns the file of a test, or the stack that several files share."""
    file = nodeid.partition("::")[0]
    return _STACK_OF.get(file, file)


def starts_services(scope: str) -> bool:
    """Returns whether tests of the scope start services, rather than compute in the test process."""
    return scope in SHARED_STACKS or scope.split("/")[1] in STACK_FOLDERS


def takes_stacks(worker: str) -> bool:
    """Returns whether a process of xdist (`gw0`, `gw1`, ...) begins with files that start services."""
    return int(worker.removeprefix("gw")) % 2 == 0


def sort_for_many_processes(items: list[pytest.Item]) -> None:
    """Sort tests by the time of their scope, longest first; then those that start services."""

    def rank(item: pytest.Item) -> tuple[int, bool, str]:
        scope = scope_of(item.nodeid)
        return -_SECONDS.get(scope, 0), not starts_services(scope), scope

    items.sort(key=rank)


def give_way(worker: str) -> None:
    """Lower the priority of this process if it computes while others wait for services."""
    if not takes_stacks(worker):
        os.nice(COMPUTING_NICENESS)


def next_scope(scopes: Iterable[str], *, stacks: bool, last: str) -> str:
    """Returns the scope that a process takes next: of its kind, and one that lets a shared stack end.

    Args:
        scopes: The scopes that are left, in the order of their times.
        stacks: The process begins with files that start services.
        last: The scope that it had before; empty for none.
    """
    left = last.rpartition("/")[0] if last in SHARED_STACKS else None

    def rank(scope: str) -> tuple[bool, bool]:
        """Put last what is of the other kind, or else keeps a shared stack running."""
        return starts_services(scope) != stacks, left is not None and scope.startswith(left)

    return min(scopes, key=rank)


class StackScheduling(LoadScopeScheduling):  # type: ignore[misc]  # xdist has no types
    """Gives each process one scope after another, of its kind for as long as there are some."""

    def _split_scope(self, nodeid: str) -> str:
        return scope_of(nodeid)

    def _assign_work_unit(self, node: WorkerController) -> None:
        had = list(self.assigned_work.get(node, ()))
        scope = next_scope(self.workqueue, stacks=takes_stacks(node.gateway.id), last=had[-1] if had else "")
        self.workqueue.move_to_end(scope, last=False)
        super()._assign_work_unit(node)
