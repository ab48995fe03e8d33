"""The client libraries and their versions. docs/compatibility.md lists them."""

from tests.clients.environments import OutsideClient

CLIENTS = (
    OutsideClient("openai_agents.py", ("openai-agents==0.24.0",)),
    OutsideClient("instructor_models.py", ("instructor==1.17.0",)),
    OutsideClient("pydantic_ai_agents.py", ("pydantic-ai-slim[anthropic,openai]==2.68.0",)),
    OutsideClient("haystack_parts.py", ("haystack-ai==3.4.1",)),
    OutsideClient("semantic_kernel_parts.py", ("semantic-kernel==1.45.0",)),
    OutsideClient("smolagents_models.py", ("smolagents[openai]==1.26.0",)),
    OutsideClient("dspy_programs.py", ("dspy==3.4.1", "numpy==2.4.6")),
    OutsideClient("litellm_calls.py", ("litellm==1.110.2",), recipe="docs/recipes/litellm.md"),
    OutsideClient(
        "vercel_ai.mjs",
        (
            "ai@6.0.326",
            "@ai-sdk/openai@3.0.141",
            "@ai-sdk/openai-compatible@2.0.92",
            "@ai-sdk/anthropic@3.0.140",
            "zod@4.6.7",
        ),
        recipe="docs/recipes/vercel-ai.md",
    ),
)
