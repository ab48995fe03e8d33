"""What the grammars of 300 schemas accept, refuse, and let a random writer write."""

import json

import pytest

from services.worker.domain.generation.token_constraint import ConstraintFactory
from services.worker.model_files.load_model import load_model
from services.worker.text.grammars.limits import GrammarLimits
from services.worker.text.grammars.structured_grammar import check_structured, compile_structured
from services.worker.text.grammars.token_vocabulary import TokenVocabulary
from shared.messages import StructuredOutput
from tests.kits.chaos.scale import scaled
from tests.kits.e2e.stack import ROOT
from tests.kits.schemas.corpus import NUM_CASES, corpus
from tests.kits.schemas.enforcement import Judge
from tests.kits.schemas.misspelt import MISSPELT
from tests.kits.schemas.schema_case import Schema

WALKS = scaled(1, 100)


@pytest.fixture(scope="module")
def judge() -> Judge:
    model = load_model(ROOT / "models" / "demo")
    vocabulary = TokenVocabulary(model.tokenizer, model.eos_ids, model.tokenizer.vocab_size)
    limits = GrammarLimits()

    def compiled(schema: Schema) -> ConstraintFactory:
        structured = StructuredOutput(kind="json_schema", definition=json.dumps(schema))
        check_structured(structured, limits)
        return compile_structured(structured, vocabulary, limits)

    def encode(text: str) -> list[int]:
        return model.tokenizer.encode(text, add_special_tokens=False)

    return Judge(compiled, encode, vocabulary.token_bytes, min(model.eos_ids))


def test_no_schema_of_the_set_is_enforced_wrongly(judge: Judge) -> None:
    found = judge.judge(corpus())
    print(f"{found.enforced} enforced, {len(found.refused)} refused")
    assert found.wrong == []
    assert found.enforced + len(found.refused) == NUM_CASES
    assert found.enforced >= 265, found.refused
    assert all(reason.partition(":")[0] != "None" for reason in found.refused.values()), found.refused


def test_names_and_values_cannot_be_spelt_past_a_schema(judge: Judge) -> None:
    assert judge.misread(MISSPELT) == []


def test_what_is_written_at_random_within_the_masks_is_valid(judge: Judge) -> None:
    assert [problem for case in corpus() for problem in judge.stray(case, WALKS)] == []
