"""DSPy: a plain call, predictions by its adapters for JSON, and embeddings."""

import dspy
from cases import API, MODEL, QUESTION, run_cases
from dspy.lm15 import AccessPolicy, ModelSupport, OpenAIChatCompat, ProviderDefinition, register_provider

# DSPy sends a schema only to models that are said to take one
register_provider(
    ProviderDefinition.chat(
        AccessPolicy(provider="ryzanstein", env_keys=("OPENAI_API_KEY",), base_url=API),
        compat=OpenAIChatCompat.preset("openai"),
    ),
    supports=ModelSupport(response_schema=True, function_calling=True),
)
LM = dspy.LM(f"ryzanstein/{MODEL}", cache=False, max_tokens=300, temperature=0.0, num_retries=0)


class Judge(dspy.Signature):
    """Say whether a fruit is sweet."""

    fruit: str = dspy.InputField()
    sweet: bool = dspy.OutputField()


def answers():
    assert LM(QUESTION)[0]


def conversations():
    assert LM(messages=[{"role": "system", "content": "Be short."}, {"role": "user", "content": QUESTION}])[0]


def typed_predictions():
    with dspy.context(lm=LM, adapter=dspy.JSONAdapter()):
        assert isinstance(dspy.Predict(Judge)(fruit="apple").sweet, bool)


def several_at_once():
    with dspy.context(lm=LM, adapter=dspy.JSONAdapter()):
        found = dspy.Predict(Judge).batch([dspy.Example(fruit="apple").with_inputs("fruit")] * 3)
    assert len(found) == 3


def embeddings():
    made = dspy.Embedder(f"openai/{MODEL}", api_base=API, api_key="none", caching=False)
    assert made(["An apple.", "A train."]).shape[0] == 2


run_cases(answers, conversations, typed_predictions, several_at_once, embeddings)
