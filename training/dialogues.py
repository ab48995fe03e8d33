"""Draws seeded conversations whose answers depend on the earlier context.

In a conversation the user tells facts, talks about other things, corrects facts and asks for them. This
module decides texts only; `batches` makes tokens, batches and loss weights.
"""

from dataclasses import dataclass, field
from random import Random
from typing import Literal

from training import facts, knowledge, words
from training.facts import Fact

Role = Literal["system", "user", "assistant"]

SYSTEM_PROMPTS = (
    *("You are a helpful assistant.", "You are Ryzanstein.", "You are a friendly assistant.", "Be brief."),
    *("You are the Ryzanstein demo model.", "Answer in short sentences.", "You are a helpful AI assistant."),
    *("Remember what the user tells you.", "You are a chat bot. Be polite and answer every question."),
)
_OPENERS = (
    "By the way, ",
    "So, ",
    "Well, ",
    "OK, ",
    "Thanks. ",
    "Hey, ",
    "Please note: ",
    "One more thing: ",
    "Now, ",
)
_ALL_FACTS = facts.all_facts()
_MAIN_FACTS = (facts.COLOUR, facts.NUMBER, facts.FOOD, facts.CITY, facts.AGE, facts.WORD, facts.CODE)


@dataclass(frozen=True, slots=True)
class DialogueMessage:
    """One message of a conversation."""

    role: Role
    content: str


@dataclass(slots=True)
class Dialogue:
    """A conversation under construction.

    Attributes:
        rng: Source of every choice.
        stated: Values of the facts told so far, by key.
        untouched: Key of a fact that the other turns neither ask for nor repeat.
        rare: Share of names that are spliced from ordinary words.
    """

    rng: Random
    messages: list[DialogueMessage] = field(default_factory=list)
    stated: dict[str, str] = field(default_factory=dict)
    untouched: str = ""
    rare: float = 0.0

    def say(self, user: str, assistant: str) -> None:
        """Append one turn."""
        self.messages += [DialogueMessage("user", user), DialogueMessage("assistant", assistant)]


def draw_conversation(rng: Random, *, turns: int, rare: float = 0.0) -> list[DialogueMessage]:
    """Draw a conversation.

    Args:
        rng: Source of every choice.
        turns: Number of user messages.
        rare: Share of names that are spliced from ordinary words.

    Returns:
        The messages, ending with the assistant's; a system message may come first.
    """
    talk = Dialogue(rng, rare=rare)
    if rng.random() < 0.3:
        talk.messages.append(DialogueMessage("system", _system_prompt(talk)))
    if turns >= 2 and rng.random() < 0.6:
        _recall_story(talk, turns)
    else:
        for _ in range(turns):
            _free_turn(talk)
    return talk.messages


def draw_memory_test(rng: Random, *, num_facts: int, turns: int, rare: float = 0.0) -> list[DialogueMessage]:
    """Draw a conversation that tells many facts early and asks for each of them once, much later.

    Args:
        rng: Source of every choice.
        num_facts: Number of different facts told.
        turns: Approximate number of user messages.
        rare: Share of names that are spliced from ordinary words.
    """
    talk = Dialogue(rng, rare=rare)
    others = [fact for fact in _ALL_FACTS if fact is not facts.NAME]
    stated = [facts.NAME, *rng.sample(others, num_facts - 1)]
    rng.shuffle(stated)
    for fact in stated:
        _state_fact(talk, fact)
    rng.shuffle(stated)
    for index in range(max(turns - num_facts, num_facts)):
        left = max(turns - num_facts, num_facts) - index
        if stated and rng.random() < len(stated) / left:
            _ask(talk, stated.pop())
        else:
            _aside(talk, rng.uniform(0.64, 1.0))
    return talk.messages


def draw_correction(rng: Random, *, rare: float = 0.0) -> list[DialogueMessage]:
    """Draw a short conversation in which the user replaces a fact and asks for it."""
    talk = Dialogue(rng, rare=rare)
    fact = _draw_fact(rng)
    for _ in range(rng.choice((2, 2, 2, 3))):
        _state_fact(talk, fact)
        if rng.random() < 0.3:
            _aside(talk, rng.uniform(0.64, 1.0))
    _ask(talk, fact)
    return talk.messages


def _recall_story(talk: Dialogue, turns: int) -> None:
    """Tell a fact first, talk about other things, and ask for the fact last."""
    fact = _draw_fact(talk.rng)
    _state_fact(talk, fact)
    if talk.rng.random() < 0.5:
        talk.untouched = fact.key
    for _ in range(turns - 2):
        _free_turn(talk)
    _ask(talk, fact)


def _free_turn(talk: Dialogue) -> None:
    rng = talk.rng
    kind = rng.random()
    fact = _draw_fact(rng)
    if kind < 0.26 and fact.key != talk.untouched:
        _state_fact(talk, fact)
    elif kind < 0.32 and not talk.untouched:
        _state_two(talk)
    elif kind < 0.52 and talk.stated:
        known = _fact(rng.choice(list(talk.stated)))
        if known.key != talk.untouched:
            _ask(talk, known)
    elif kind < 0.57 and fact.key != talk.untouched:
        _ask(talk, fact)
    elif kind < 0.61 and not talk.untouched:
        _ask_two(talk)
    elif kind < 0.64 and not talk.untouched:
        _check_name(talk)
    else:
        _aside(talk, kind)


def _aside(talk: Dialogue, kind: float) -> None:
    """Add a turn that tells nothing about the user; `kind`, from 0.64 to 1, chooses which."""
    rng = talk.rng
    if kind < 0.70:
        _repeat(talk)
    elif kind < 0.85:
        question, answer = knowledge.draw_question(rng)
        talk.say(vary(question, rng), answer)
    else:
        remark, reply = knowledge.draw_small_talk(rng)
        talk.say(vary(remark, rng), reply)


def _draw_value(talk: Dialogue, fact: Fact) -> str:
    if talk.rare and fact.draw is words.draw_name and talk.rng.random() < talk.rare:
        return words.draw_rare_name(talk.rng)
    return fact.draw(talk.rng)


def _draw_fact(rng: Random) -> Fact:
    kind = rng.random()
    if kind < 0.5:
        return facts.NAME
    return rng.choice(_MAIN_FACTS) if kind < 0.8 else rng.choice(_ALL_FACTS)


def _fact(key: str) -> Fact:
    return next(fact for fact in _ALL_FACTS if fact.key == key)


def _system_prompt(talk: Dialogue) -> str:
    rng = talk.rng
    prompt = rng.choice(SYSTEM_PROMPTS)
    if rng.random() < 0.15:
        name = words.draw_name(rng)
        talk.stated["name"] = name
        prompt += f" {rng.choice(('The user is called', 'The name of the user is'))} {name}."
    return prompt


def _state_fact(talk: Dialogue, fact: Fact) -> None:
    rng = talk.rng
    value = _draw_value(talk, fact)
    known = fact.key in talk.stated
    template = rng.choice(fact.correct if known and rng.random() < 0.8 else fact.statements)
    talk.stated[fact.key] = value
    sentence = vary(template, rng).replace("{v}", value)
    if rng.random() < 0.05:
        question, answer = rng.choice(fact.ask), fact.answer
        talk.say(f"{sentence} {question}", answer.format(v=value))
    elif fact is facts.NAME and known:
        talk.say(sentence, f"All right, I will call you {value}.")
    else:
        talk.say(sentence, fact.note.format(v=value))


def _state_two(talk: Dialogue) -> None:
    rng = talk.rng
    first = facts.NAME if rng.random() < 0.7 else rng.choice(_MAIN_FACTS)
    second = rng.choice([fact for fact in _MAIN_FACTS if fact is not first])
    parts, notes = [], []
    for fact in (first, second):
        value = _draw_value(talk, fact)
        talk.stated[fact.key] = value
        parts.append(vary(fact.statements[rng.randrange(3)], rng, opener=False).replace("{v}", value))
        notes.append(fact.note.format(v=value))
    joined = f"{parts[0]} {parts[1]}"
    if rng.random() < 0.6:
        tail = (
            parts[1]
            if parts[1].startswith(("I ", "I'", talk.stated[second.key]))
            else parts[1][:1].lower() + parts[1][1:]
        )
        joined = f"{parts[0].rstrip('.!')} and {tail}"
    talk.say(joined, " ".join(notes))


def _answer(talk: Dialogue, fact: Fact) -> str:
    value = talk.stated.get(fact.key)
    return fact.unknown if value is None else fact.answer.format(v=value)


def _ask(talk: Dialogue, fact: Fact) -> None:
    talk.say(vary(talk.rng.choice(fact.ask), talk.rng), _answer(talk, fact))


def _ask_two(talk: Dialogue) -> None:
    rng = talk.rng
    known = [_fact(key) for key in talk.stated]
    first, second = rng.sample(known if len(known) > 1 else [facts.NAME, *_MAIN_FACTS], 2)
    opening = rng.choice(
        ("What is {a} and {b}?", "Tell me {a} and {b}.", "What are {a} and {b}?", "Do you know {a} and {b}?")
    )
    question = opening.format(a=first.clause, b=second.clause)
    talk.say(vary(question, rng), f"{_answer(talk, first)} {_answer(talk, second)}")


def _check_name(talk: Dialogue) -> None:
    rng = talk.rng
    name = talk.stated.get("name")
    guess = name if name is not None and rng.random() < 0.5 else words.draw_name(rng)
    question = vary(rng.choice(("Is my name {v}?", "Am I {v}?", "Am I called {v}?")), rng).replace(
        "{v}", guess
    )
    if name is None:
        talk.say(question, facts.NAME.unknown)
    else:
        talk.say(question, f"{'Yes' if guess == name else 'No'}, your name is {name}.")


def _repeat(talk: Dialogue) -> None:
    rng = talk.rng
    draws = (words.draw_word, words.draw_word, words.draw_name, words.draw_number, words.draw_colour)
    phrase = " ".join(rng.choice(draws)(rng) for _ in range(rng.choice((1, 1, 2, 3, 4, 6))))
    order = rng.choice(
        ("Repeat after me: {v}", "Say {v}", "Repeat: {v}", "Please say {v}", "Please repeat {v}", "Echo {v}")
    )
    talk.say(vary(order, rng).replace("{v}", phrase), phrase)


def vary(template: str, rng: Random, *, opener: bool = True) -> str:
    """Vary case, punctuation and opening words of a user's sentence; placeholders stay unchanged."""
    text = template
    if opener and rng.random() < 0.1 and not text.startswith("{"):
        lowered = text if text.startswith(("I ", "I'")) else text[:1].lower() + text[1:]
        text = rng.choice(_OPENERS) + lowered
    if rng.random() < 0.15:
        text = text.lower()
    kind = rng.random()
    if kind < 0.15:
        text = text.rstrip(".?!")
    elif kind < 0.22:
        text = text[:-1] + "!" if text.endswith(".") else text
    if rng.random() < 0.05:
        text = text.replace("'", "") if "'" in text else text + " "
    return text.strip()
