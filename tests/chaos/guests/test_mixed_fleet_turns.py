"""One model, served by an own group, llama.cpp's server and vLLM's: sessions move, context stays.

Where no vLLM is named, a scripted server stands for it.
"""

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from functools import partial

import httpx
import pytest

from services.worker.model_files.load_model import load_model
from services.worker.null.engine import TEXT
from tests.kits.chaos.figures import record
from tests.kits.chaos.scale import scaled
from tests.kits.e2e.stack import Stack
from tests.kits.guests.guest_fleet import OWN, joined
from tests.kits.guests.mixed_sessions import MixedSession, turns_by_group
from tests.kits.guests.servers import false_command, llama_command, served, vllm_command
from tests.kits.waiting import PATIENCE_S, wait_for

pytestmark = [pytest.mark.guests, pytest.mark.timeout(scaled(600, 5400))]
SESSIONS, TURNS = scaled((6, 5), (50, 20))
AT_ONCE = 6
MODEL = "mixed"


def are_ready(stack: Stack) -> bool:
    return [one["state"] for one in stack.status()["groups"]].count("ready") == 3


def have_turns(session: MixedSession, api: httpx.Client) -> None:
    for _ in range(TURNS):
        session.take_turn(api)
    print(f"{session.name}: {session.groups}", flush=True)


def test_sessions_keep_their_context_in_a_mixed_fleet(tmp_path_factory: pytest.TempPathFactory) -> None:
    command, path = llama_command(threads=1)
    folder = tmp_path_factory.mktemp("mixed-turns")
    options = ["--groups", "1", "--tensor-parallel", "1", "--routers", "1"]
    options += ["--model", str(path), "--model-name", MODEL]
    env = {"RYZ_ROUTER_POLICY": "least_loaded", "RYZ_THREADS": "1"}
    with ExitStack() as cleanup:
        stack = cleanup.enter_context(Stack(folder, *options, env=env, calm=False)).await_ready()
        commands = {"llama": command}
        if (vllm := vllm_command(parallel=4)) is not None:
            commands["vllm"] = vllm
        else:
            commands["scripted"] = false_command("vllm", path, 0, TEXT)
        servers = [cleanup.enter_context(served(name, command, folder)) for name, command in commands.items()]
        for server in servers:
            cleanup.enter_context(joined(stack, server, MODEL, path))
        wait_for(partial(are_ready, stack), "all groups are ready")
        api = cleanup.enter_context(httpx.Client(base_url=stack.state.url, timeout=3 * PATIENCE_S))
        model = replace(load_model(path), name=MODEL)
        proxies = {server.name: server.proxy for server in servers}
        sessions = [MixedSession(f"mixed-{number}", model, proxies) for number in range(SESSIONS)]
        with ThreadPoolExecutor(AT_ONCE) as pool:
            list(pool.map(partial(have_turns, api=api), sessions))  # the first that fails cancels the rest
        for session in sessions:
            session.check_record(api)
        turns, moves = turns_by_group(sessions), sum(session.moves() for session in sessions)
        record("guests mixed fleet", turns=turns, moves=moves, sessions=SESSIONS)
        assert turns.keys() == {OWN, *commands}
        assert sum(turns.values()) == SESSIONS * TURNS
        assert moves > 0, "no session moved"
