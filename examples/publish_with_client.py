"""A Python service that has text generated over NATS: `InferenceClient` does the protocol.

    .venv/bin/python examples/publish_with_client.py --prompt "My cat is called Miso." --session cat
    .venv/bin/python examples/publish_with_client.py --prompt "What is my cat called?" --session cat

Lost, repeated and reordered frames, a lost broker, deadlines and cancellation are the client's business. What
is left for the caller: to read the stream, and to say what an error means for its own users.
"""

import argparse
import asyncio
import logging
import os
import sys
from contextlib import AsyncExitStack

import structlog

from shared.bus.accounts import caller_by
from shared.bus.nats import NatsBus
from shared.client import InferenceClient
from shared.errors import RyzError
from shared.host.local_stack import broker_url
from shared.identity import new_request_id
from shared.messages import ChatMessage, GenerateRequest, Sampling, SessionRef


async def main(args: argparse.Namespace) -> None:
    # our libraries log with structlog; this program reports errors by `RyzError` instead
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    async with AsyncExitStack() as stack:
        url = args.nats_url or broker_url()
        bus = await NatsBus.connect(url, name="example", connect_wait_s=3)
        stack.push_async_callback(bus.close)
        # the broker knows this service by the user in the URL; its requests belong to that user's tenant
        caller = caller_by(url, os.environ.get("RYZ_NATS_TENANT", ""))
        client = InferenceClient(
            bus, caller=caller
        )  # one for the process, for any number of requests at once
        await client.start()
        stack.push_async_callback(client.close)

        request = GenerateRequest(
            request_id=new_request_id(),
            model=args.model,
            messages=[ChatMessage(role="user", content=args.prompt)],
            sampling=Sampling(temperature=0.0, max_tokens=args.max_tokens),
            session=SessionRef(session_id=args.session) if args.session else None,
        )
        # leaving the block early, by a break or an exception, cancels the generation
        async with client.submit(request, timeout_s=args.timeout) as stream:
            async for deltas in stream:
                for delta in deltas:
                    print(delta.text, end="", flush=True)
        print()
        usage = stream.usage
        print(
            f"[{usage.prompt_tokens} + {usage.completion_tokens} tokens, group {stream.group}]",
            file=sys.stderr,
        )


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Streams one answer over NATS with InferenceClient.")
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
    except RyzError as error:  # a closed family, see shared/errors.py; `error.data` is for programs
        sys.exit(f"{error.code}: {error.message}")
    except KeyboardInterrupt:
        sys.exit(130)
