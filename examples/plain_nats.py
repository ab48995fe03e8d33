"""Text generation over NATS with nothing but nats-py and msgpack: the protocol of docs/protocol.md by hand.

    .venv/bin/python examples/plain_nats.py --prompt "Why do Python lists have a sort method?"

It publishes the request again when no group took it, puts frames into order, asks for lost ones, and cancels
when it is interrupted. Copy it into a service that is not to depend on ours, or port it to another language:
subjects and fields are spelled out here, as docs/protocol.md lists them, and not imported from `shared`.
"""

import argparse
import asyncio
import json
import os
import secrets
import sys
from typing import Any
from urllib.parse import urlsplit

import msgpack
import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg

STATE_FILE = ".ryz/up.json"
CONNECT_TIMEOUT_S = 3
ACCEPT_TIMEOUT_S = 0.2
SILENCE_S = 1.0
ATTEMPTS = 5
ASK_AGAIN = "the answer is not complete: ask again"


def broker_url() -> str:
    """`RYZ_NATS_URL`, else the broker of the stack that `ryz up` started here, else the usual port."""
    if url := os.environ.get("RYZ_NATS_URL"):
        return url
    try:
        opened = os.open(STATE_FILE, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with os.fdopen(opened) as file:
            if os.fstat(opened).st_uid == os.geteuid():  # a file of another user could name another broker
                return str(json.load(file)["nats_url"])
    except FileNotFoundError:
        return "nats://127.0.0.1:4222"
    except (OSError, ValueError, KeyError, TypeError):
        pass
    raise GenerationFailed(
        f"invalid_request: {STATE_FILE} is not what `ryz up` wrote for this user; set RYZ_NATS_URL"
    )


def caller_subjects(url: str) -> str:
    """Return what the subjects of this caller begin with: the broker lets a user publish for one tenant only.

    The tenant has the user's name unless `RYZ_NATS_TENANT` names another. A broker without accounts has no
    users, and believes the tenant in a request.
    """
    user = urlsplit(url).username if urlsplit(url).password else ""
    return f"ryz.v1.tenant.{os.environ.get('RYZ_NATS_TENANT') or user}.{user}" if user else "ryz.v1"


class GenerationFailed(Exception):
    """The generation ended with an error; the text starts with its code."""


def token(name: str) -> str:
    """A name as one token of a subject."""
    plain = set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-")
    return "".join(c if c in plain else "".join(f"={b:02X}" for b in c.encode()) for c in name)


class PlainGeneration:
    """One request: frames come in, in whatever order, and go out by number."""

    def __init__(self, nc: Client, subjects: str, request: dict[str, Any], timeout_s: float) -> None:
        self.nc = nc
        self.subjects = subjects
        self.request = request
        self.timeout_s = timeout_s
        self.group = ""
        self.next_seq = 0
        self.held: dict[int, dict[str, Any]] = {}
        self.messages: asyncio.Queue[Msg] = asyncio.Queue(maxsize=4096)
        self.ended = False

    async def run(self) -> None:
        """Print the answer as it comes."""
        inbox = self.request["reply_to"]
        frames = await self.nc.subscribe(inbox, cb=self.messages.put)
        notices = await self.nc.subscribe(f"{inbox}.*", cb=self.messages.put)
        try:
            async with asyncio.timeout(self.timeout_s):
                await self.follow()
        except TimeoutError as error:
            raise GenerationFailed(f"deadline_exceeded: no end within {self.timeout_s:g} s") from error
        finally:
            if not self.ended:
                await self.cancel()
            await frames.unsubscribe()
            await notices.unsubscribe()

    async def follow(self) -> None:
        """Publish the request and takes what comes, until the last frame."""
        await self.publish()
        silent = 0
        while not self.ended:
            patience = SILENCE_S if self.group else ACCEPT_TIMEOUT_S * 2**silent
            message = await self.next_message(patience)
            if message is not None:
                silent = 0
                await self.arrived(message)
            else:
                silent += 1
                await self.after_silence(silent)

    async def next_message(self, patience_s: float) -> Msg | None:
        try:
            return await asyncio.wait_for(self.messages.get(), patience_s)
        except TimeoutError:
            return None

    async def publish(self) -> None:
        """The same bytes may be published any number of times: nothing starts twice."""
        await self.nc.publish(
            f"{self.subjects}.generate.{token(self.request['model'])}",
            msgpack.packb(self.request),
            reply=f"{self.request['reply_to']}.no-router",
            headers={"Ryz-Timeout-Ms": str(int(self.timeout_s * 1000))},
        )

    async def arrived(self, message: Msg) -> None:
        if message.headers and message.headers.get("Status") == "503":
            raise GenerationFailed("unavailable: no router is running")
        batch = msgpack.unpackb(message.data, strict_map_key=False)
        group = batch.get("group", "")
        if self.group and group and group != self.group:
            return  # another group took a second copy of the request; the first one has it
        self.group = self.group or group
        if self.take(batch["frames"]) and self.group:
            await self.ask_for_missing()

    async def after_silence(self, times: int) -> None:
        if self.group:
            await self.ask_for_missing()
        elif times >= ATTEMPTS:
            raise GenerationFailed("unavailable: no group took the request")
        else:
            await self.publish()

    async def ask_for_missing(self) -> None:
        resend = {"request_id": self.request["request_id"], "from_seq": self.next_seq}
        try:
            answer = await self.nc.request(
                f"{self.subjects}.resend.{self.group}", msgpack.packb(resend), timeout=1
            )
        except nats.errors.Error as error:
            raise GenerationFailed(
                f"group_lost: group {self.group} no longer answers; {ASK_AGAIN}"
            ) from error
        reply = msgpack.unpackb(answer.data, strict_map_key=False)
        if not reply["known"]:
            raise GenerationFailed(f"group_lost: group {self.group} has forgotten the request; {ASK_AGAIN}")
        self.take(reply.get("frames", []))

    def take(self, frames: list[dict[str, Any]]) -> bool:
        """Hands out what is in order; true if something before the rest is missing."""
        for frame in frames:
            seq = frame.get("seq", 0)
            if seq >= self.next_seq:
                self.held[seq] = frame
        while not self.ended and self.next_seq in self.held:
            self.hand_out(self.held.pop(self.next_seq))
            self.next_seq += 1
        return bool(self.held) and not self.ended

    def hand_out(self, frame: dict[str, Any]) -> None:
        match frame["type"]:
            case "accepted":
                self.group = frame["group"]
            case "tokens":
                for delta in frame["deltas"]:
                    print(delta.get("text", ""), end="", flush=True)
            case "done":
                self.ended = True
                print()
                print(f"{frame['usage']} from group {self.group}", file=sys.stderr)
            case "failed":
                self.ended = True
                raise GenerationFailed(f"{frame['code']}: {frame['message']}")

    async def cancel(self) -> None:
        """Cancel the request at its group, or at every group while none is known."""
        subject = f"{self.subjects}.cancel.{self.group}" if self.group else f"{self.subjects}.cancel"
        await self.nc.publish(subject, msgpack.packb({"request_id": self.request["request_id"]}))


async def connect(url: str) -> Client:
    """nats-py tries again and again, also after it lost the broker; the first time gets three seconds."""
    nc, last = Client(), ""

    async def note(error: Exception) -> None:
        nonlocal last
        last = str(error) or type(error).__name__
        if nc.is_connected or nc.is_reconnecting:
            print(f"[broker: {last}]", file=sys.stderr)

    given = urlsplit(url)  # with accounts on the broker, a user reads inboxes of its own only
    inbox = f"_INBOX.{given.username}" if given.password else "_INBOX"
    try:
        connecting = nc.connect(url, name="plain example", error_cb=note, inbox_prefix=inbox)
        await asyncio.wait_for(connecting, CONNECT_TIMEOUT_S)
    except (OSError, ValueError, nats.errors.Error) as error:
        why = str(error) or last or "no answer"
        if "authorization violation" in why.lower():
            raise GenerationFailed(
                f"unauthorized: the broker at {url.rpartition('@')[2]} refuses this user ({why}): its "
                "password is wrong, or it is suspended, revoked or has expired. `ryz keys list` shows it."
            ) from error
        raise GenerationFailed(
            f"unavailable: no broker at {url.rpartition('@')[2]} ({why}). "
            "`ryz up` starts one; `--nats-url` or RYZ_NATS_URL names another."
        ) from error
    return nc


async def main(args: argparse.Namespace) -> None:
    url = args.nats_url or broker_url()
    nc = await connect(url)
    try:
        request: dict[str, Any] = {
            "request_id": secrets.token_hex(12),
            "model": args.model,
            "messages": [{"role": "user", "content": args.prompt}],
            "sampling": {"temperature": 0.0, "max_tokens": args.max_tokens},
            "reply_to": nc.new_inbox(),
        }
        if args.session:
            request["session"] = {"session_id": args.session}
        await PlainGeneration(nc, caller_subjects(url), request, args.timeout).run()
    finally:
        await nc.close()


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Streams one answer over NATS, by hand.")
    parser.add_argument(
        "--nats-url", default="", help="[default: RYZ_NATS_URL, or the stack that is up here, or port 4222]"
    )
    parser.add_argument("--model", default=os.environ.get("RYZ_MODEL_NAME") or "smollm2-135m")
    parser.add_argument("--prompt", default="Hello! Who are you?")
    parser.add_argument("--session", default="", help="any id; later turns with it know this one")
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--timeout", type=float, default=60.0, help="seconds")
    return parser.parse_args()


if __name__ == "__main__":
    try:
        asyncio.run(main(parse()))
    except GenerationFailed as error:
        sys.exit(str(error))
    except (OSError, nats.errors.Error) as error:
        sys.exit(f"unavailable: the broker is gone ({str(error) or type(error).__name__})")
    except KeyboardInterrupt:
        sys.exit(130)
