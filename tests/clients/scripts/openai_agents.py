"""openai-agents: runs, streams, tools and typed results, by chat completions and by responses."""

from agents import (
    Agent,
    ModelSettings,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    function_tool,
    set_tracing_disabled,
)
from cases import API, MODEL, QUESTION, run_cases
from openai import AsyncOpenAI
from pydantic import BaseModel

set_tracing_disabled(True)
SHORT = ModelSettings(max_tokens=40, temperature=0)
CALLED = []


class Fruit(BaseModel):
    """What typed results are."""

    sweet: bool
    colour: str


@function_tool
def price(fruit: str) -> str:
    """The price of a fruit."""
    CALLED.append(fruit)
    return "two"


def models():
    client = AsyncOpenAI(base_url=API, max_retries=0)
    return OpenAIChatCompletionsModel(MODEL, client), OpenAIResponsesModel(MODEL, client)


async def answers_by_both_apis():
    for model in models():
        result = await Runner.run(Agent("a", "Be short.", model=model, model_settings=SHORT), QUESTION)
        assert result.final_output
        assert isinstance(result.final_output, str)


async def streams_by_both_apis():
    for model in models():
        result = Runner.run_streamed(Agent("a", "Be short.", model=model, model_settings=SHORT), QUESTION)
        deltas = [
            event.data.delta
            async for event in result.stream_events()
            if event.type == "raw_response_event" and event.data.type == "response.output_text.delta"
        ]
        assert "".join(deltas) == result.final_output


async def typed_results_by_both_apis():
    settings = ModelSettings(max_tokens=200, temperature=0)
    for model in models():
        agent = Agent("a", "Be short.", model=model, model_settings=settings, output_type=Fruit)
        result = await Runner.run(agent, QUESTION)
        assert isinstance(result.final_output, Fruit)


async def tools_by_both_apis():
    settings = ModelSettings(max_tokens=200, temperature=0, tool_choice="required")
    for model in models():
        CALLED.clear()
        agent = Agent("a", "Use the tool.", model=model, model_settings=settings, tools=[price])
        result = await Runner.run(agent, "The price of an apple?", max_turns=3)
        assert CALLED
        assert result.final_output


async def histories_by_both_apis():
    for model in models():
        agent = Agent("a", "Be short.", model=model, model_settings=SHORT)
        first = await Runner.run(agent, QUESTION)
        again = [*first.to_input_list(), {"role": "user", "content": "Another one."}]
        assert (await Runner.run(agent, again)).final_output


run_cases(
    answers_by_both_apis,
    streams_by_both_apis,
    typed_results_by_both_apis,
    tools_by_both_apis,
    histories_by_both_apis,
)
