"""smolagents: answers, streams, tools, and an agent that ends by a tool."""

from cases import API, MODEL, QUESTION, run_cases
from smolagents import OpenAIModel, Tool, ToolCallingAgent
from smolagents.models import ChatMessage, MessageRole

ASKED = [ChatMessage(role=MessageRole.USER, content=[{"type": "text", "text": QUESTION}])]


class Price(Tool):
    """A tool."""

    name = "price"
    description = "The price of a fruit."
    inputs = {"fruit": {"type": "string", "description": "Which one."}}
    output_type = "string"

    def forward(self, fruit: str) -> str:
        return "two"


def model(**more):
    return OpenAIModel(model_id=MODEL, api_base=API, api_key="none", max_tokens=200, temperature=0, **more)


def answers():
    found = model().generate(ASKED, stop_sequences=["Observation:"])
    assert found.content
    assert found.token_usage.output_tokens


def streams():
    assert "".join(delta.content or "" for delta in model().generate_stream(ASKED))


def tools():
    found = model().generate(ASKED, tools_to_call_from=[Price()])
    assert found.tool_calls[0].function.name == "price"


def schemas():
    schema = {
        "type": "object",
        "properties": {"sweet": {"type": "boolean"}},
        "required": ["sweet"],
        "additionalProperties": False,
    }
    form = {"type": "json_schema", "json_schema": {"name": "fruit", "schema": schema, "strict": True}}
    assert "sweet" in model().generate(ASKED, response_format=form).content


def an_agent():
    agent = ToolCallingAgent(tools=[Price()], model=model(), max_steps=2, verbosity_level=0)
    agent.run("What is the price of an apple?")
    assert agent.memory.steps


run_cases(answers, streams, tools, schemas, an_agent)
