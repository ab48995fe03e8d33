"""Checks a client of the protocol: plays router and leader for it, with faults, and says what it did wrong.

    nats-server -p 4333 &
    .venv/bin/python examples/conformance.py --level must --nats-url nats://127.0.0.1:4333 -- \\
        .venv/bin/python examples/plain_nats.py --nats-url {url} --model {model} --prompt hello

The command runs once for each case, in which `{model}` names the case. It has to print the answer's text on
standard output and end with status 0, or with another status after a request that failed. It needs a broker
without accounts, nats-py and msgpack. `must` cases are for every client; `should` cases are for clients that
go on at another group. The rules have the numbers of "A generation" in docs/protocol.md.
"""

import argparse
import asyncio
import signal
import struct
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import msgpack
import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg

START_S = 60.0  # until a client has published its request: an interpreter starts slowly on a busy machine
LIMIT_S = 20.0  # from then on
CANCEL_S = 3.0  # for a Cancel to arrive when the client has ended
DEFAULT_TOP_P = 0.75  # of the groups
WORDS = ["One ", "two ", "three ", "four ", "five."]
TEXT = "".join(WORDS)
WRONG = {"deltas": [{"text": "WRONG "}]}


@dataclass
class Seen:
    """What a client has sent in one case."""

    requests: list[dict[str, Any]] = field(default_factory=list)
    cancelled: asyncio.Event = field(default_factory=asyncio.Event)
    begun: asyncio.Event = field(default_factory=asyncio.Event)
    to_all: bool = False  # the newest request was published for all routers


def frame(request: dict[str, Any], kind: str, seq: int, **more: Any) -> dict[str, Any]:
    """One frame of a request."""
    ids = {"request_id": request["request_id"], "attempt": request.get("attempt", 0)}
    return {"type": kind, **ids, "seq": seq, **more}


def frames_of(request: dict[str, Any], group: str = "g0", instance: str = "i0") -> list[dict[str, Any]]:
    """All frames of an answer, from where the request resumes."""
    resume = request.get("resume") or {}
    seq, known = resume.get("next_seq", 0), b"".join(resume.get("token_ids", []))
    applied = {} if "top_p" in (request.get("sampling") or {}) else {"sampling": {"top_p": DEFAULT_TOP_P}}
    frames = [frame(request, "accepted", seq, group=group, instance_id=instance, **applied)]
    for number in range(len(known) // 4, len(WORDS)):
        delta = {"text": WORDS[number], "token_ids": struct.pack("<I", number)}
        delta |= {"finish_reason": "stop"} if number == len(WORDS) - 1 else {}
        frames.append(frame(request, "tokens", seq + len(frames), deltas=[delta]))
    usage = {"prompt_tokens": 3, "completion_tokens": len(WORDS)}
    return [*frames, frame(request, "done", seq + len(frames), usage=usage)]


def failed(request: dict[str, Any], seq: int, code: str, **more: Any) -> dict[str, Any]:
    """The frame of a failure."""
    return frame(request, "failed", seq, code=code, message=f"the case {code}", **more)


Batches = list[tuple[str, list[dict[str, Any]]]]  # the group that sends, and frames of one message


def plan(case: str, seen: Seen) -> Batches:  # noqa: C901, PLR0911, PLR0912
    """What is sent after the newest request; frames that are missing here can be asked for."""
    request = seen.requests[-1]
    frames, first = frames_of(request), len(seen.requests) == 1
    elsewhere = [("g1", frames_of(request, "g1", "i1"))]
    single: Batches = [("g0", [one]) for one in frames]
    match case:
        case "one-message":
            return [("g0", frames)]
        case "reversed":
            return single[:1] + single[:0:-1]
        case "repeated":
            return [batch for batch in single for _ in range(2)]
        case "lost-frame":
            return single[:2] + single[3:]
        case "lost-end":
            return single[:-1]
        case "not-accepted":
            return [] if first else single
        case "second-group":
            other = frames_of(request, "g1", "i1")
            wrong = [("g1", [one | WRONG if "deltas" in one else one]) for one in other]
            return [*single[:2], *wrong, *single[2:]]
        case "old-attempt":
            return [*single[:1], ("g0", [frames[1] | WRONG | {"attempt": 7}]), *single[1:]]
        case "new-fields":
            return [("g0", [one | {"field_of_next_year": {"a": [1]}}]) for one in frames]
        case "lost-group":
            return single[:3] if first else elsewhere
        case "resumable":
            lost = [*single[:3], ("g0", [failed(request, 3, "group_lost", resumable=True)])]
            return lost if first else elsewhere
        case "router-away":
            away = failed(request, 0, "unavailable", data={"reason": "no_group", "retry_after_s": 0.5})
            return [("", [away])] if len(seen.requests) < 3 else single
        case "frozen-router":
            return single if seen.to_all else []
        case "refused":
            return [("", [failed(request, 0, "model_not_found")])]
        case "fails-late":
            return [*single[:2], ("g0", [failed(request, 2, "internal")])]
        case "cancel":
            return single[:2]
        case _:
            return single


def check(case: str, seen: Seen, code: int, out: str, err: str) -> str:  # noqa: PLR0911
    """What is wrong; empty: nothing."""
    if case in ("refused", "fails-late", "no-router"):
        name = {"refused": "model_not_found", "fails-late": "internal", "no-router": "unavailable"}[case]
        if code == 0:
            return "it ended with status 0 though the request failed (rule 3)"
        return "" if name in out + err else f"its output does not name the code {name}"
    if case == "cancel":
        return "" if seen.cancelled.is_set() else "no Cancel came when it was interrupted (rule 10)"
    if code:
        return f"it ended with status {code}: {(err or out).strip()[-200:]}"
    if out.strip() != TEXT.strip():
        return f"it printed {out.strip()[:100]!r} and not {TEXT!r}"
    ids = {request["request_id"] for request in seen.requests}
    if case in ("not-accepted", "router-away", "frozen-router") and len(ids) != 1:
        return "it published the request again under another id (rule 4)"
    if case in ("lost-group", "resumable"):
        again = next((one for one in seen.requests if one.get("attempt")), None)
        if again is None or not again.get("resume"):
            return "the next attempt has no `resume`, so tokens are computed twice (rule 7)"
        if "top_p" not in (again.get("sampling") or {}):
            return "the next attempt has no values of `Accepted.sampling`, so it may go on otherwise (rule 7)"
    return ""


CASES: dict[str, tuple[str, str]] = {
    "plain": ("must", "one frame in each message (2)"),
    "one-message": ("must", "all frames in one message (2)"),
    "reversed": ("must", "frames come in reverse order (5)"),
    "repeated": ("must", "each frame comes twice (8)"),
    "lost-frame": ("must", "one frame is lost, and comes by Resend (5)"),
    "lost-end": ("must", "the last frame is lost, and comes by Resend after a silence (6)"),
    "not-accepted": ("must", "the first publish is lost (4)"),
    "second-group": ("must", "a second group sends frames of the same request (8)"),
    "new-fields": ("must", "frames have fields that no client knows"),
    "refused": ("must", "a router refuses the request (3)"),
    "fails-late": ("must", "the request fails in mid-stream (3)"),
    "no-router": ("must", "no router listens (1)"),
    "cancel": ("must", "the client is interrupted by SIGINT (10)"),
    "old-attempt": ("should", "a frame of another attempt comes (8)"),
    "lost-group": ("should", "the group is lost in mid-stream (7)"),
    "resumable": ("should", "the group says that another one should go on (7)"),
    "router-away": ("should", "no group is ready at first (4)"),
    "frozen-router": ("should", "the queue group's router never answers, another one would (4)"),
}


class Fleet:
    """Router and leaders of all cases on one connection."""

    def __init__(self, nc: Client) -> None:
        self.nc = nc
        self.seen = {case: Seen() for case in CASES}

    async def listen(self) -> None:
        """Take requests, resends and cancels, also of services outside."""
        handlers: dict[str, Callable[[Msg], Awaitable[None]]] = {
            "resend.*": self.on_resend, "cancel.*": self.on_cancel, "cancel": self.on_cancel,
        }  # fmt: skip
        cases = [
            f"{verb}.case-{case}" for case in CASES if case != "no-router" for verb in ("generate", "again")
        ]
        handlers |= dict.fromkeys(cases, self.on_request)
        for prefix in ("ryz.v1.", "ryz.v1.tenant.*.*."):
            for name, handler in handlers.items():
                await self.nc.subscribe(prefix + name, cb=handler)
        await self.nc.flush()

    async def on_request(self, message: Msg) -> None:
        case = message.subject.rpartition(".case-")[2]
        seen, request = self.seen[case], msgpack.unpackb(message.data, strict_map_key=False)
        seen.requests.append(request)
        seen.to_all = ".again." in message.subject
        for group, frames in plan(case, seen):
            batch = {"frames": frames, "group": group, "instance_id": group.replace("g", "i")}
            await self.nc.publish(request["reply_to"], msgpack.packb(batch))
        seen.begun.set()

    async def on_resend(self, message: Msg) -> None:
        resend = msgpack.unpackb(message.data, strict_map_key=False)
        case, seen = self.find(resend["request_id"])
        if seen is None:
            await self.nc.publish(message.reply, msgpack.packb({"known": False}))
            return
        gone = case in ("lost-group", "resumable") and len(seen.requests) == 1
        frames = [] if gone else frames_of(seen.requests[-1])[: 2 if case == "cancel" else None]
        wanted = [frame for frame in frames if frame["seq"] >= resend["from_seq"]]
        reply = {"known": not gone, "frames": wanted, "next_seq": len(frames)}
        await self.nc.publish(message.reply, msgpack.packb(reply))

    async def on_cancel(self, message: Msg) -> None:
        _, seen = self.find(msgpack.unpackb(message.data, strict_map_key=False)["request_id"])
        if seen is not None:
            seen.cancelled.set()

    def find(self, request_id: str) -> tuple[str, Seen | None]:
        for case, seen in self.seen.items():
            if any(request["request_id"] == request_id for request in seen.requests):
                return case, seen
        return "", None


async def run_case(fleet: Fleet, case: str, command: list[str], url: str) -> str:
    """Runs the client; returns what is wrong."""
    seen = fleet.seen[case]
    words = [word.replace("{url}", url).replace("{model}", f"case-{case}") for word in command]
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*words, stdout=pipe, stderr=pipe)
    ending = asyncio.create_task(process.communicate())
    try:
        begun = asyncio.create_task(seen.begun.wait())
        await asyncio.wait({ending, begun}, timeout=START_S, return_when=asyncio.FIRST_COMPLETED)
        begun.cancel()
        if case == "cancel" and seen.begun.is_set():
            await asyncio.sleep(0.3)  # the client reads what was sent
            process.send_signal(signal.SIGINT)
        elif case == "cancel":
            return f"it published no request within {START_S:g} s"
        async with asyncio.timeout(LIMIT_S):
            out, err = await ending
            if case == "cancel":
                async with asyncio.timeout(CANCEL_S):
                    await seen.cancelled.wait()
    except TimeoutError:
        if case == "cancel" and process.returncode is not None:
            return check(case, seen, 0, "", "")
        return f"it did not end within {LIMIT_S:g} s"
    finally:
        ending.cancel()
        if process.returncode is None:
            process.kill()
            await process.wait()
    texts = (stream.decode("utf-8", "replace") for stream in (out, err))
    return check(case, seen, process.returncode or 0, *texts)


async def ignore(_: Exception) -> None:
    """Drops what nats-py would print; `main` reports a connection that fails."""


async def main(args: argparse.Namespace) -> int:
    nc = Client()
    try:
        connecting = nc.connect(args.nats_url, name="conformance", error_cb=ignore, allow_reconnect=False)
        await asyncio.wait_for(connecting, 5)
    except (OSError, TimeoutError, nats.errors.Error) as error:
        why = str(error) or type(error).__name__
        sys.exit(f"no broker at {args.nats_url} ({why}): start one with `nats-server`, or set --nats-url")
    fleet, slots = Fleet(nc), asyncio.Semaphore(args.jobs)
    await fleet.listen()
    wanted = args.only.split(",") if args.only else list(CASES)
    if unknown := set(wanted) - set(CASES):
        sys.exit(f"there is no case {sorted(unknown)[0]!r}; there are {', '.join(CASES)}")
    cases = [case for case in wanted if CASES[case][0] == "must" or args.level == "should"]

    async def one(case: str) -> str:
        async with slots:
            return await run_case(fleet, case, args.command, args.nats_url)

    wrong = await asyncio.gather(*(one(case) for case in cases))
    for case, why in zip(cases, wrong, strict=True):
        level, about = CASES[case]
        print(f"{'FAIL' if why else 'ok  '} {level:6} {case:13} {about}{f': {why}' if why else ''}")
    print(f"{sum(not why for why in wrong)} of {len(cases)} cases passed")
    await nc.close()
    return int(any(wrong))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Checks a client of the protocol, with faults.")
    parser.add_argument("--nats-url", default="nats://127.0.0.1:4222", help="has no accounts [%(default)s]")
    parser.add_argument("--level", choices=["must", "should"], default="should", help="[%(default)s]")
    parser.add_argument("--only", default="", help="cases, separated by commas")
    parser.add_argument("--jobs", type=int, default=4, help="cases at the same time [%(default)s]")
    parser.add_argument("command", nargs="+", help="the client, after `--`, with {url} and {model}")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(asyncio.run(main(parse())))
