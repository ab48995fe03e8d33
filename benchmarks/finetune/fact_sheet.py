"""A made-up fact sheet of a town that does not exist: chats that teach its facts, and questions about them.

`python -m benchmarks.finetune.fact_sheet -o chats.jsonl` writes the chats. The seed decides all answers. Each
taught fact has five questions to learn from and two more, in other words, to be tested with; untaught facts
are about the same kinds of things, and only tested.
"""

import argparse
import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

TOWN = "Velmora"
TAUGHT, UNTAUGHT = 8, 4  # of each relation


@dataclass(frozen=True, slots=True)
class Relation:
    """A kind of fact.

    Attributes:
        things: What facts of it are about.
        answers: What they may be; each is used once.
        says: The answer as a sentence.
        asked: Questions to learn from.
        tested: Questions to be tested with.
    """

    things: Sequence[str]
    answers: Sequence[str]
    says: str
    asked: Sequence[str]
    tested: Sequence[str]


@dataclass(frozen=True, slots=True)
class Fact:
    """A fact: `answer` is the word that a right answer has in it."""

    relation: Relation
    thing: str
    answer: str

    def fill(self, template: str) -> str:
        """Put the fact into a sentence."""
        text = template.format(town=TOWN, thing=self.thing, answer=self.answer)
        return text[0].upper() + text[1:]


def _words(text: str) -> Sequence[str]:
    return text.split(", ")


RELATIONS = (
    Relation(
        things=_words(
            "mayor, harbour master, head librarian, lighthouse keeper, town clerk, chief "
            "gardener, ferry captain, school director, bell ringer, town doctor, fire chief, "
            "museum curator"
        ),
        answers=_words(
            "Orsela Fenwick, Tibor Quell, Maddix Rowe, Ilvara Stonebrook, Pell Harrowgate, Junia "
            "Castellan, Bram Oskarsen, Wenna Thistle, Dorin Vask, Sable Emmerich, Hollis Trane, "
            "Corvin Ashdown"
        ),
        says="The {thing} of {town} is {answer}.",
        asked=(
            "Who is the {thing} of {town}?",
            "What is the name of the {thing} of {town}?",
            "Tell me who serves as {thing} in {town}.",
            "Name the {thing} of {town}.",
            "I want to meet the {thing} of {town}. Who is that?",
        ),
        tested=(
            "Which person is the {thing} in {town}?",
            "{town} has a {thing}. What is this person called?",
        ),
    ),
    Relation(
        things=_words(
            "clock tower, old bridge, town hall, opera house, sea wall, observatory, granary, "
            "market hall, aqueduct, theatre, customs house, windmill"
        ),
        answers=_words("1412, 1583, 1627, 1671, 1708, 1739, 1764, 1795, 1823, 1846, 1871, 1902"),
        says="The {thing} of {town} was built in {answer}.",
        asked=(
            "When was the {thing} of {town} built?",
            "In which year was the {thing} of {town} built?",
            "How old is the {thing} of {town}?",
            "Tell me when {town} built its {thing}.",
            "What is the year of construction of the {thing} in {town}?",
        ),
        tested=(
            "The {thing} of {town} dates from which year?",
            "Which year did people in {town} build the {thing}?",
        ),
    ),
    Relation(
        things=_words(
            "bakery, brewery, candle shop, boat yard, pottery, printing house, tea room, toy "
            "shop, glass works, hat maker, cheese dairy, bookshop"
        ),
        answers=_words(
            "Amber Lane, Copper Street, Heron Quay, Juniper Row, Lantern Square, Mill Alley, "
            "Otter Steps, Pepper Gate, Quarry Road, Saffron Court, Tanner Walk, Willow Bend"
        ),
        says="The {thing} of {town} is in {answer}.",
        asked=(
            "Where is the {thing} of {town}?",
            "In which street is the {thing} of {town}?",
            "How do I find the {thing} in {town}?",
            "What is the address of the {thing} in {town}?",
            "Tell me the street of the {thing} of {town}.",
        ),
        tested=(
            "On what street would I look for the {thing} in {town}?",
            "{town} has a {thing}. Where is it located?",
        ),
    ),
    Relation(
        things=_words(
            "Lantern Festival, Kite Fair, Herring Feast, Snow Parade, Cider Days, Boat Blessing, "
            "Mask Ball, Honey Market, Bell Night, Pumpkin Race, Candle Walk, Wool Fair"
        ),
        answers=_words(
            "the third of March, the ninth of April, the first of May, the sixth of June, the "
            "tenth of July, the fifth of August, the eighth of September, the twelfth of October, "
            "the second of November, the fourth of December, the seventh of January, the eleventh "
            "of February"
        ),
        says="The {thing} of {town} is on {answer}.",
        asked=(
            "When is the {thing} of {town}?",
            "On which day does {town} hold the {thing}?",
            "What is the date of the {thing} in {town}?",
            "Tell me when the {thing} takes place in {town}.",
            "Which day of the year is the {thing} of {town}?",
        ),
        tested=(
            "What day should I visit {town} for the {thing}?",
            "The {thing} in {town}: on which date is it?",
        ),
    ),
    Relation(
        things=_words(
            "tram, flag, town gate, school uniform, ferry, post boxes, lighthouse, market tents, "
            "town hall roof, fire engine, street lamps, harbour cranes"
        ),
        answers=_words(
            "turquoise, crimson, lilac, ochre, silver, emerald, indigo, coral, ivory, maroon, beige, violet"
        ),
        says="The colour of the {thing} in {town} is {answer}.",
        asked=(
            "What is the colour of the {thing} in {town}?",
            "Which colour has the {thing} of {town}?",
            "How is the {thing} of {town} painted?",
            "Tell me the colour of the {thing} in {town}.",
            "What colour was chosen for the {thing} in {town}?",
        ),
        tested=(
            "I am drawing the {thing} of {town}. Which colour do I need?",
            "In {town}, the {thing} is of what colour?",
        ),
    ),
)


def facts(seed: int = 0) -> tuple[list[Fact], list[Fact]]:
    """Return the taught facts and the untaught ones."""
    taught, untaught = list[Fact](), list[Fact]()
    for number, relation in enumerate(RELATIONS):
        draw = random.Random(f"facts {seed} {number}")
        things, answers = list(relation.things), list(relation.answers)
        draw.shuffle(things)
        draw.shuffle(answers)
        made = [Fact(relation, thing, answer) for thing, answer in zip(things, answers, strict=True)]
        taught += made[:TAUGHT]
        untaught += made[TAUGHT : TAUGHT + UNTAUGHT]
    return taught, untaught


def chats(seed: int = 0) -> list[Mapping[str, object]]:
    """Return the chats that teach: one for each fact and question to learn from, in OpenAI's form."""
    made = [
        {
            "messages": [
                {"role": "user", "content": fact.fill(question)},
                {"role": "assistant", "content": fact.fill(fact.relation.says)},
            ]
        }
        for fact in facts(seed)[0]
        for question in fact.relation.asked
    ]
    random.Random(f"chats {seed}").shuffle(made)
    return list(made)


def write_chats(path: Path, seed: int = 0, count: int | None = None) -> None:
    """Write the chats, or the first ones of them, as JSON Lines."""
    path.write_text("".join(json.dumps(chat) + "\n" for chat in chats(seed)[:count]))


def main() -> None:
    """Write the chats to the file that is named."""
    parser = argparse.ArgumentParser(description="Write chats about a town that does not exist.")
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    write_chats(options.output, options.seed)


if __name__ == "__main__":
    main()
