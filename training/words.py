"""Names and other values that users tell the demo model, listed or made up at random.

Made-up values keep the model from memorising a list: it has to copy what the user wrote. `HELD_OUT_NAMES` are
never drawn, so that tests can use names that are not in the training data.
"""

# ruff: noqa: SIM905 - a long list of words reads better as text.
import re
from functools import cache
from random import Random

from training import prose

HELD_OUT_NAMES: tuple[str, ...] = tuple(
    """Ada Grace Linus Margaret Alan Barbara Dennis Edsger Donald Guido Katherine Hedy Tim Radia Vint
    Frances Niklaus Shafi Whitfield Leslie Sofia Oliver Priya Mateo Ingrid Yusuf Chiara Kofi Hannah
    Viktor Naomi Felix Aisha Bruno Camille Dmitri Elena Rosalind Jasper Freya""".split()
)

TRAINING_NAMES: tuple[str, ...] = tuple(
    """James Mary Robert Patricia John Jennifer Michael Linda David Elizabeth William Susan Richard Jessica
    Joseph Sarah Thomas Karen Charles Lisa Christopher Nancy Daniel Betty Matthew Sandra Anthony Ashley
    Mark Emily Steven Kimberly Paul Donna Andrew Michelle Joshua Carol Kenneth Amanda Kevin Melissa
    Brian Deborah George Stephanie Timothy Rebecca Ronald Laura Jason Helen Edward Sharon Jeffrey
    Cynthia Ryan Amy Jacob Angela Gary Anna Nicholas Ruth Eric Brenda Jonathan Pamela Stephen Nicole
    Larry Julia Justin Virginia Scott Emma Brandon Maria Benjamin Samantha Samuel Olivia Gregory Diana
    Alexander Rachel Patrick Janet Frank Heather Raymond Catherine Jack Joan Henry Lauren Peter Victoria
    Adam Martha Nathan Judith Zachary Megan Kyle Andrea Walter Alice Harold Jean Carl Doris Arthur Rose
    Roger Gloria Keith Theresa Lawrence Marie Terry Bob Ann Tom Eve Max Ben Sam Leo Mia Zoe Ian Kim Lee
    Joe Amir Chen Wei Mei Yuki Hiro Kenji Sakura Aiko Ravi Anjali Deepak Lakshmi Omar Fatima Hassan
    Layla Ahmed Zainab Ivan Olga Boris Natasha Sergei Lars Astrid Bjorn Sven Kirsten Anders Pierre
    Claire Marcel Amelie Luc Hans Greta Klaus Heidi Jurgen Otto Pablo Lucia Carlos Isabel Diego Carmen
    Javier Ines Giulia Marco Paolo Bianca Lorenzo Kwame Ama Chidi Ngozi Thabo Zola Tariq Samir Noor
    Leila Cyrus Darius Esther Moses Aaron Gideon Miriam Tobias Silas Fiona Callum Isla Rory Siobhan
    Declan Maeve Owen Rhys Gareth Bronwyn Quentin Xavier Wanda Ulrich Yvonne Zelda Igor Vera Pavel José
    Zoë Jürgen René Łukasz Søren François Noël Beyoncé Ánton Müge Håkon""".split()
)

SURNAMES: tuple[str, ...] = tuple(
    """Smith Jones Brown Taylor Wilson Walker White Harris Martin Thompson Young King Wright Hill Scott
    Green Baker Nelson Carter Mitchell Turner Parker Evans Edwards Collins Stewart Morris Cook Rogers
    Reed Bailey Garcia Silva Rossi Weber Novak Kowalski Ivanov Tanaka Kim Nguyen Patel Khan Okafor
    Mensah O'Neil""".split()
)

COLOURS: tuple[str, ...] = tuple(
    """red blue green yellow orange purple pink brown black white grey gray violet indigo turquoise teal
    cyan magenta maroon gold silver beige ivory crimson scarlet lavender olive navy amber coral mint
    lilac""".split()
)

CITIES: tuple[str, ...] = (
    *"""London Paris Berlin Madrid Rome Vienna Prague Lisbon Dublin Oslo Stockholm Helsinki Copenhagen
    Warsaw Budapest Athens Brussels Amsterdam Zurich Geneva Milan Munich Hamburg Barcelona Porto Moscow
    Istanbul Cairo Nairobi Lagos Accra Tunis Tokyo Kyoto Osaka Seoul Beijing Shanghai Delhi Mumbai
    Bangkok Hanoi Manila Jakarta Sydney Melbourne Auckland Toronto Montreal Vancouver Chicago Boston
    Seattle Denver Dallas Houston Miami Lima Bogota Quito Santiago Havana Glasgow Leeds Bristol York
    Oxford Cambridge""".split(),
    *("New York", "San Francisco", "Los Angeles", "Buenos Aires", "Cape Town", "Hong Kong", "Mexico City"),
)

FOODS: tuple[str, ...] = tuple(
    """pizza pasta rice soup bread cheese chocolate sushi curry salad noodles pancakes apples bananas
    cherries grapes strawberries potatoes beans tofu fish chicken steak waffles dumplings tacos burritos
    lasagna risotto ramen falafel hummus porridge toast honey cake cookies""".split()
)

NOUNS: tuple[str, ...] = tuple(
    """apple river mountain window garden bridge forest candle mirror pencil bottle castle island engine
    rocket planet basket hammer ladder blanket violin guitar piano pepper butter cloud storm thunder
    desert ocean valley meadow lantern kettle pillow ribbon saddle tunnel wagon feather marble cotton
    velvet copper silver banana orange table chair door paper letter number circle square triangle
    winter summer spring autumn""".split()
)

PETS: tuple[str, ...] = ("dog", "cat", "rabbit", "horse", "parrot", "hamster", "turtle", "goldfish")
RELATIVES: tuple[str, ...] = (
    *("sister", "brother", "mother", "father", "friend", "wife", "husband", "son", "daughter", "boss"),
    *("teacher", "neighbour", "aunt", "uncle", "cousin"),
)

_ONSETS = "b c d f g h j k l m n p r s t v w y z br ch cl dr fr gr kr ph sh st th tr qu".split()
_VOWELS = "a e i o u a e i o ai ea ee ia ou ei oo y".split()
_CODAS = ["", "", "", "", "n", "l", "r", "s", "m", "th", "ck", "nd", "x", "t", "d", "ne", "lle"]
_HELD_OUT_LOWER = frozenset(name.lower() for name in HELD_OUT_NAMES)


def draw_name(rng: Random) -> str:
    """Draw a first or full name: listed, spliced from two listed ones, or made of syllables or letters."""
    while True:
        kind = rng.random()
        if kind < 0.3:
            name = rng.choice(TRAINING_NAMES)
        elif kind < 0.5:
            first, last = rng.choice(TRAINING_NAMES), rng.choice(TRAINING_NAMES)
            name = first[: rng.randint(1, 4)] + last[-rng.randint(2, 5) :]
        elif kind < 0.82:
            name = _syllables(rng, rng.choice((1, 2, 2, 2, 3, 3, 4)))
        else:
            letters = "".join(rng.choice("abcdefghijklmnopqrstuvwxyz") for _ in range(rng.randint(2, 9)))
            name = letters
        name = name[:1].upper() + name[1:].lower()
        if rng.random() < 0.06:
            name += " " + rng.choice(SURNAMES if rng.random() < 0.5 else TRAINING_NAMES)
        elif rng.random() < 0.04:
            name = name.lower()
        if len(name) >= 2 and not is_held_out(name):
            return name


def draw_rare_name(rng: Random) -> str:
    """Draw a name spliced from two ordinary words, so that rare tokens also occur in names."""
    while True:
        first, last = rng.choice(_ordinary_words()), rng.choice(_ordinary_words())
        name = (first[: rng.randint(1, 5)] + last[-rng.randint(1, 5) :]).capitalize()
        if len(name) >= 3 and not is_held_out(name):
            return name


def is_held_out(name: str) -> bool:
    """Whether any word of `name` is reserved for tests."""
    return any(word.lower() in _HELD_OUT_LOWER for word in name.replace("-", " ").split())


def draw_colour(rng: Random) -> str:
    """Draw a colour, rarely an invented one."""
    return _listed_or_invented(rng, COLOURS)


def draw_food(rng: Random) -> str:
    """Draw a dish, rarely an invented one."""
    return _listed_or_invented(rng, FOODS)


def draw_word(rng: Random) -> str:
    """Draw a noun or an invented word."""
    return _listed_or_invented(rng, NOUNS, invented=0.4)


def draw_city(rng: Random) -> str:
    """Draw a city, or an invented one."""
    while True:
        city = rng.choice(CITIES) if rng.random() < 0.7 else _syllables(rng, rng.randint(2, 3)).capitalize()
        if not is_held_out(city):
            return city


def draw_number(rng: Random) -> str:
    """Draw a whole number of one to five digits; short ones are more likely."""
    return str(rng.randrange(10 ** rng.choice((1, 2, 2, 2, 3, 4, 5))))


def _listed_or_invented(rng: Random, listed: tuple[str, ...], invented: float = 0.2) -> str:
    while True:
        word = _syllables(rng, rng.randint(2, 3)) if rng.random() < invented else rng.choice(listed)
        if not is_held_out(word):
            return word


@cache
def _ordinary_words() -> tuple[str, ...]:
    paragraphs = [text for topic in prose.load_topics(held_out=False) for text in topic.paragraphs]
    found = {word.lower() for text in paragraphs for word in re.findall(r"[A-Za-z]{3,}", text)}
    return tuple(sorted(found.union(NOUNS, FOODS, (name.lower() for name in TRAINING_NAMES))))


def _syllables(rng: Random, count: int) -> str:
    parts: list[str] = []
    for _ in range(count):
        onset = rng.choice(_ONSETS) if rng.random() < 0.85 else ""
        parts += [onset, rng.choice(_VOWELS), rng.choice(_CODAS)]
    return "".join(parts)
