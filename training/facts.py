"""Facts that a user can tell the demo model about themselves, with sentences that tell, ask and answer them.

Each `Fact` has the phrasings of one fact; `{v}` stands for the value and `{k}` for the kind (such as a pet or
a relative). `dialogues` chooses among the phrasings.
"""

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from training import words


@dataclass(frozen=True, slots=True)
class Fact:
    """Phrasings of one fact.

    Attributes:
        key: Unique key of the fact in a conversation.
        statements: User sentences that state it.
        correct: User sentences that replace an earlier value.
        ask: Questions for it.
        clause: Noun phrase for joint questions, such as "my name".
        answer: The only correct answer.
        unknown: The answer if the fact was never told.
        note: The assistant's reply when the fact is told.
    """

    key: str
    statements: tuple[str, ...]
    correct: tuple[str, ...]
    ask: tuple[str, ...]
    clause: str
    answer: str
    unknown: str
    note: str
    draw: Callable[[Random], str]


NAME = Fact(
    key="name",
    statements=(
        *("My name is {v}.", "My name is {v}.", "My name is {v}.", "I am {v}.", "I'm {v}.", "Call me {v}."),
        *("My name's {v}.", "You can call me {v}.", "Please call me {v}.", "They call me {v}.", "It's {v}."),
        *("This is {v}.", "The name is {v}.", "I am called {v}.", "People call me {v}.", "I go by {v}."),
        *(
            "Hi, my name is {v}.",
            "Hello, I'm {v}.",
            "Hello! My name is {v}.",
            "Hi, I am {v}.",
            "Hi, {v} here.",
        ),
        *("Please remember that my name is {v}.", "My first name is {v}.", "Remember my name: {v}."),
        *(
            "Let me introduce myself: I am {v}.",
            "Good morning, my name is {v}.",
            "I would like to be called {v}.",
        ),
    ),
    correct=(
        *(
            "My name is now {v}.",
            "Actually, my name is {v}.",
            "Sorry, my name is {v}.",
            "No, my name is {v}.",
        ),
        *("I changed my name to {v}.", "Please call me {v} from now on.", "I was wrong, my name is {v}."),
        *(
            "Correction: my name is {v}.",
            "From now on my name is {v}.",
            "I am {v} now.",
            "Call me {v} instead.",
        ),
    ),
    ask=(
        *("What is my name?", "What is my name?", "What is my name?", "What's my name?", "Who am I?"),
        *("Do you remember my name?", "Do you know my name?", "Can you tell me my name?", "Tell me my name."),
        *(
            "Can you remember my name?",
            "What was my name?",
            "What am I called?",
            "Say my name.",
            "My name is?",
        ),
        *(
            "What did I say my name was?",
            "Do you still know my name?",
            "Do you know who I am?",
            "And my name?",
        ),
        *(
            "Which name did I tell you?",
            "What was my name again?",
            "What name did I give you?",
            "How am I called?",
        ),
        *("Please tell me what my name is.", "Remind me of my name.", "Do you still remember my name?"),
    ),
    clause="my name",
    answer="Your name is {v}.",
    unknown="You have not told me your name.",
    note="Nice to meet you, {v}.",
    draw=words.draw_name,
)


def _favourite(thing: str, draw: Callable[[Random], str], extra_statements: tuple[str, ...] = ()) -> Fact:
    return Fact(
        key=thing,
        statements=(
            *(f"My favourite {thing} is {{v}}.", f"My favorite {thing} is {{v}}."),
            *(f"The {thing} I like most is {{v}}.", f"I like the {thing} {{v}}.", *extra_statements),
            *(f"Please remember that my favourite {thing} is {{v}}.", f"{{v}} is my favourite {thing}."),
        ),
        correct=(
            *(f"My favourite {thing} is now {{v}}.", f"Actually, my favorite {thing} is {{v}}."),
            *(f"I changed my mind, my favourite {thing} is {{v}}.", f"No, my favourite {thing} is {{v}}."),
        ),
        ask=(
            *(f"What is my favourite {thing}?", f"What's my favorite {thing}?", f"Which {thing} do I like?"),
            *(f"What is my favorite {thing}?", f"Do you remember my favourite {thing}?"),
            *(
                f"Do you know my favourite {thing}?",
                f"Tell me my favourite {thing}.",
                f"Which {thing} do I like most?",
            ),
            *(f"And my favourite {thing}?", f"What {thing} do I like?", f"What was my favourite {thing}?"),
        ),
        clause=f"my favourite {thing}",
        answer=f"Your favourite {thing} is {{v}}.",
        unknown=f"You have not told me your favourite {thing}.",
        note=f"I will remember that your favourite {thing} is {{v}}.",
        draw=draw,
    )


COLOUR = _favourite("colour", words.draw_colour, ("My favorite color is {v}.", "I love the color {v}."))
NUMBER = _favourite("number", words.draw_number, ("My lucky number is {v}.",))
FOOD = _favourite("food", words.draw_food, ("I love to eat {v}.", "I like to eat {v}."))

CITY = Fact(
    key="city",
    statements=(
        *("I live in {v}.", "I live in {v}.", "My city is {v}.", "I am living in {v}.", "My home is in {v}."),
    ),
    correct=("I moved to {v}.", "I now live in {v}.", "Actually, I live in {v}.", "I live in {v} now."),
    ask=(
        *(
            "Where do I live?",
            "Which city do I live in?",
            "What city do I live in?",
            "Do you know where I live?",
        ),
        *(
            "Do you remember where I live?",
            "In which city do I live?",
            "What is my city?",
            "Where is my home?",
        ),
    ),
    clause="my city",
    answer="You live in {v}.",
    unknown="You have not told me where you live.",
    note="I will remember that you live in {v}.",
    draw=words.draw_city,
)

AGE = Fact(
    key="age",
    statements=("I am {v} years old.", "I'm {v} years old.", "My age is {v}.", "I turned {v} this year."),
    correct=("I am now {v} years old.", "Actually, I am {v} years old.", "I am {v} years old now."),
    ask=("How old am I?", "What is my age?", "Do you know how old I am?", "Do you remember my age?"),
    clause="my age",
    answer="You are {v} years old.",
    unknown="You have not told me your age.",
    note="I will remember that you are {v} years old.",
    draw=lambda rng: str(rng.randint(3, 99)),
)

WORD = Fact(
    key="word",
    statements=(
        *(
            "Remember the word {v}.",
            "Please remember the word {v}.",
            "The secret word is {v}.",
            "The word is {v}.",
        ),
        *(
            "The password is {v}.",
            "Keep this word in mind: {v}",
            "The code word is {v}.",
            "Memorise the word {v}.",
        ),
    ),
    correct=("The secret word is now {v}.", "Now remember the word {v}.", "The new word is {v}."),
    ask=(
        *(
            "What is the word?",
            "What was the word?",
            "What is the secret word?",
            "Which word did I tell you?",
        ),
        *(
            "What word should you remember?",
            "Do you remember the word?",
            "What is the password?",
            "Tell me the word.",
        ),
        *("What was the secret word?", "Which word did I ask you to remember?", "What is the code word?"),
    ),
    clause="the word",
    answer="The word is {v}.",
    unknown="You have not told me a word.",
    note="I will remember the word {v}.",
    draw=words.draw_word,
)

CODE = Fact(
    key="code",
    statements=(
        *(
            "Remember the number {v}.",
            "Please remember the number {v}.",
            "The number is {v}.",
            "The code is {v}.",
        ),
        *(
            "The secret number is {v}.",
            "Keep the number {v} in mind.",
            "My number is {v}.",
            "I chose the number {v}.",
        ),
    ),
    correct=("The number is now {v}.", "Now remember the number {v}.", "The new number is {v}."),
    ask=(
        *("What is the number?", "What was the number?", "Which number did I tell you?", "What is the code?"),
        *("What number should you remember?", "Do you remember the number?", "What is the secret number?"),
        *("Tell me the number.", "What is my number?", "Which number did I ask you to remember?"),
    ),
    clause="the number",
    answer="The number is {v}.",
    unknown="You have not told me a number.",
    note="I will remember the number {v}.",
    draw=words.draw_number,
)


def pet_fact(kind: str) -> Fact:
    """The fact of a pet's name; `kind` is the animal, such as "dog"."""
    return Fact(
        key=kind,
        statements=(
            *(f"My {kind} is called {{v}}.", f"My {kind}'s name is {{v}}.", f"I have a {kind} called {{v}}."),
            *(f"I have a {kind} named {{v}}.", f"The name of my {kind} is {{v}}.", f"{{v}} is my {kind}."),
        ),
        correct=(f"My {kind} is now called {{v}}.", f"Actually, my {kind} is called {{v}}."),
        ask=(
            *(f"What is my {kind} called?", f"What is my {kind}'s name?", f"What is the name of my {kind}?"),
            *(f"What's my {kind}'s name?", f"Do you remember my {kind}'s name?", f"How is my {kind} called?"),
        ),
        clause=f"my {kind}'s name",
        answer=f"Your {kind} is called {{v}}.",
        unknown=f"You have not told me your {kind}'s name.",
        note=f"I will remember that your {kind} is called {{v}}.",
        draw=words.draw_name,
    )


def relative_fact(kind: str) -> Fact:
    """The fact of a relative's name; `kind` is the relation, such as "sister"."""
    return Fact(
        key=kind,
        statements=(
            *(f"My {kind} is called {{v}}.", f"My {kind}'s name is {{v}}.", f"{{v}} is my {kind}."),
            *(f"The name of my {kind} is {{v}}.", f"I have a {kind} named {{v}}.", f"My {kind} is {{v}}."),
        ),
        correct=(f"Actually, my {kind}'s name is {{v}}.", f"No, my {kind} is called {{v}}."),
        ask=(
            *(f"What is my {kind}'s name?", f"What's my {kind}'s name?", f"What is my {kind} called?"),
            *(f"What is the name of my {kind}?", f"Who is my {kind}?", f"Do you remember my {kind}'s name?"),
        ),
        clause=f"my {kind}'s name",
        answer=f"Your {kind}'s name is {{v}}.",
        unknown=f"You have not told me your {kind}'s name.",
        note=f"I will remember that your {kind}'s name is {{v}}.",
        draw=words.draw_name,
    )


def all_facts() -> tuple[Fact, ...]:
    """All facts that a conversation can contain."""
    return (
        *(NAME, COLOUR, NUMBER, FOOD, CITY, AGE, WORD, CODE),
        *(pet_fact(kind) for kind in words.PETS),
        *(relative_fact(kind) for kind in words.RELATIVES),
    )
