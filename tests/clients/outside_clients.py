"""The client libraries and their versions. docs/compatibility.md lists them."""

from tests.clients.environments import OutsideClient, OutsideProgram

CLIENTS = (
    OutsideClient("openai_agents.py", ("openai-agents==0.24.0",)),
    OutsideClient("instructor_models.py", ("instructor==1.17.0",)),
    OutsideClient("pydantic_ai_agents.py", ("pydantic-ai-slim[anthropic,openai]==2.68.0",)),
    OutsideClient("haystack_parts.py", ("haystack-ai==3.4.1",)),
    OutsideClient("semantic_kernel_parts.py", ("semantic-kernel==1.45.0",)),
    OutsideClient("smolagents_models.py", ("smolagents[openai]==1.26.0",)),
    OutsideClient("dspy_programs.py", ("dspy==3.4.1", "numpy==2.4.6")),
    OutsideClient("litellm_calls.py", ("litellm==1.110.2",), recipe="docs/recipes/litellm.md"),
    # torch by its version, as ours is: the newest one takes gigabytes of CUDA packages
    OutsideClient("open_webui.py", ("torch==2.13.0", "open-webui==0.12.4")),
    # the newest one that runs on Python 3.13.0; the last three are what it installs when it is set up
    OutsideClient(
        "home_assistant.py",
        (
            "homeassistant==2025.4.4",
            "openai==1.68.2",
            "hassil==2.2.3",
            "home-assistant-intents==2025.3.28",
        ),
        python="3.13",
    ),
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

CLAUDE_CODE = OutsideProgram(
    "claude-code",
    ("@anthropic-ai/claude-code@2.1.332",),
    "answers, a file that it writes, a search for tools, short contexts, a wrong name, a wrong key.",
    recipe="docs/recipes/claude-code.md",
)
CODEX = OutsideProgram(
    "codex",
    ("@openai/codex@0.171.0",),
    "answers, a file that it writes by a command, a short context, a wrong and a missing key.",
    recipe="docs/recipes/codex.md",
)
PROGRAMS = (CLAUDE_CODE, CODEX)
