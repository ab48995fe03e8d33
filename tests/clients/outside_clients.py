"""The client libraries and their versions. docs/compatibility.md lists them."""

from tests.clients.environments import OutsideClient

CLIENTS = (
    OutsideClient("openai_agents.py", ("openai-agents==0.24.0",)),
    OutsideClient(
        "vercel_ai.mjs",
        (
            "ai@6.0.326",
            "@ai-sdk/openai@3.0.141",
            "@ai-sdk/openai-compatible@2.0.92",
            "@ai-sdk/anthropic@3.0.140",
            "zod@4.6.7",
        ),
    ),
)
