"""pydantic-ai: answers, streams, typed results and tools, by OpenAI's two APIs and by Anthropic's."""

from anthropic import AsyncAnthropic
from cases import API, MODEL, QUESTION, URL, run_cases
from pydantic import BaseModel
from pydantic_ai import Agent, NativeOutput
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider

SHORT = {"max_tokens": 40, "temperature": 0.0}
LONG = {"max_tokens": 200, "temperature": 0.0}


class Fruit(BaseModel):
    """What typed results are."""

    sweet: bool
    colour: str


def models():
    openai = OpenAIProvider(base_url=API, api_key="none")
    anthropic = AnthropicProvider(anthropic_client=AsyncAnthropic(base_url=URL, api_key="none"))
    return (
        OpenAIChatModel(MODEL, provider=openai),
        OpenAIResponsesModel(MODEL, provider=openai),
        AnthropicModel(MODEL, provider=anthropic),
    )


async def answers():
    for model in models():
        assert (await Agent(model, model_settings=SHORT).run(QUESTION)).output


async def streams():
    for model in models():
        async with Agent(model, model_settings=SHORT).run_stream(QUESTION) as result:
            parts = [part async for part in result.stream_text(delta=True)]
            assert "".join(parts) == await result.get_output()


async def typed_results_by_tools():
    for model in models():
        found = await Agent(model, output_type=Fruit, model_settings=LONG, retries=0).run("An apple.")
        assert isinstance(found.output, Fruit)


async def typed_results_by_schema():
    for model in models()[:2]:
        agent = Agent(model, output_type=NativeOutput(Fruit), model_settings=LONG, retries=0)
        assert isinstance((await agent.run("An apple.")).output, Fruit)


async def histories():
    for model in models():
        agent = Agent(model, model_settings=SHORT)
        first = await agent.run(QUESTION)
        again = await agent.run("Another one.", message_history=first.all_messages())
        assert again.output


run_cases(answers, streams, typed_results_by_tools, typed_results_by_schema, histories)
