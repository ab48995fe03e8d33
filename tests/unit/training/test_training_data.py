"""The demo model's training data: seeded, well formed, and without the names kept for tests."""

import re
from itertools import pairwise
from random import Random
from string import Formatter

import pytest

from training import facts, prose, words
from training.dialogues import (
    DialogueMessage,
    draw_conversation,
    draw_correction,
    draw_memory_test,
    vary,
)
from training.subjects import SUBJECTS


def _conversations(seed: int, count: int) -> list[list[DialogueMessage]]:
    rng = Random(seed)
    return [draw_conversation(rng, turns=rng.randint(1, 12)) for _ in range(count)]


def test_the_same_seed_draws_the_same_conversations() -> None:
    assert _conversations(3, 50) == _conversations(3, 50)
    assert _conversations(3, 50) != _conversations(4, 50)


def test_held_out_names_never_appear() -> None:
    held_out = {name.lower() for name in words.HELD_OUT_NAMES}
    for messages in _conversations(0, 3000):
        for message in messages:
            spoken = {"".join(filter(str.isalpha, word)).lower() for word in message.content.split()}
            assert not spoken & held_out, message


def test_enough_names_on_both_sides() -> None:
    assert len(words.TRAINING_NAMES) >= 150
    assert len(words.HELD_OUT_NAMES) >= 30
    assert not {n.lower() for n in words.TRAINING_NAMES} & {n.lower() for n in words.HELD_OUT_NAMES}


def test_roles_alternate_and_every_message_says_something() -> None:
    for messages in _conversations(1, 500):
        turns = messages[1:] if messages[0].role == "system" else messages
        assert [message.role for message in turns] == ["user", "assistant"] * (len(turns) // 2)
        assert all(message.content.strip() for message in messages)


def test_no_placeholder_is_left_over() -> None:
    for messages in _conversations(2, 2000):
        assert not any("{" in message.content or "}" in message.content for message in messages)


@pytest.mark.parametrize("fact", facts.all_facts(), ids=lambda fact: fact.key)
def test_templates_take_the_value_where_they_should(fact: facts.Fact) -> None:
    def fields(template: str) -> set[str | None]:
        return {field for _, field, _, _ in Formatter().parse(template)} - {None}

    for template in (*fact.statements, *fact.correct, fact.answer, fact.note):
        assert fields(template) == {"v"}
    for template in (*fact.ask, fact.unknown, fact.clause):
        assert fields(template) == set()


def test_a_name_is_answered_as_it_was_told_last() -> None:
    asked = 0
    for messages in _conversations(5, 4000):
        stated = None
        for user, assistant in pairwise(messages):
            if user.role != "user":
                continue
            if statement := re.fullmatch(r"my name(?: is|'s) ([^ ]+?)[.!]?", user.content, re.IGNORECASE):
                stated = statement[1]
            elif stated is not None and re.match(r"what(?: is|'s) my name\b", user.content, re.IGNORECASE):
                asked += assistant.content == f"Your name is {stated}."
    assert asked > 20


def test_a_memory_test_asks_once_for_what_was_told_before() -> None:
    rng = Random(8)
    for _ in range(100):
        messages = draw_memory_test(rng, num_facts=4, turns=12, rare=0.5)
        answers = [found[1] for m in messages if (found := re.fullmatch(r"Your name is (.+)\.", m.content))]
        assert len(answers) <= 2  # two only if one message both tells and asks
        stated = " ".join(message.content for message in messages[:8])
        assert all(answer in stated for answer in answers)


def test_a_correction_ends_with_the_newest_value() -> None:
    rng = Random(9)
    seen = 0
    for _ in range(300):
        messages = draw_correction(rng, rare=0.5)
        answer = re.fullmatch(r"Your name is (.+)\.", messages[-1].content)
        if answer is not None:
            stated = [m for m in messages[:-2] if m.role == "assistant" and answer[1] in m.content]
            assert stated
            seen += 1
    assert seen > 50


def test_rare_names_are_never_held_out() -> None:
    rng = Random(10)
    names = {words.draw_rare_name(rng) for _ in range(3000)}
    assert len(names) > 2500
    assert not names & set(words.HELD_OUT_NAMES)


def test_variation_keeps_placeholders() -> None:
    rng = Random(0)
    assert all("{v}" in vary("My name is {v}.", rng) for _ in range(200))


def test_python_subjects_are_many_and_answered_in_sentences() -> None:
    assert len(SUBJECTS) >= 40
    for subject in SUBJECTS:
        assert subject.names
        assert subject.answer.endswith(".")


def test_prose_is_clean_and_held_out_topics_share_no_paragraph() -> None:
    training = {text for topic in prose.load_topics(held_out=False) for text in topic.paragraphs}
    held_out = {text for topic in prose.load_topics(held_out=True) for text in topic.paragraphs}
    assert len(training) > 200
    assert held_out
    assert not training & held_out
    assert not any("::=" in text or "\n" in text or "*" in text for text in training | held_out)


def test_passages_are_whole_paragraphs() -> None:
    topics = prose.load_topics(held_out=False)
    known = {text for topic in topics for text in topic.paragraphs}
    passage, _ = prose.draw_passage(Random(0), topics, 600)
    assert set(passage.split("\n")) <= known
