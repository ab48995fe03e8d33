"""English prose for the demo model, cleaned from the reference topics that ship with CPython.

Grammar productions, tables, code and markup are dropped; whole paragraphs remain. Some topics are held out,
so that perplexity can be measured on text that is not in the training data.
"""

import re
from dataclasses import dataclass
from pydoc_data.topics import topics
from random import Random

HELD_OUT_TOPICS: frozenset[str] = frozenset(
    {"while", "context-managers", "naming", "numeric-types", "del", "global"}
)
_MARKUP = re.compile(r"[*\"`“”]|::=.*")
_BAD = re.compile(r"::=|[|{}<>\\^]|---|===|>>>|\bPEP\b|@|^Changed in|^New in|^Deprecated")
_QUESTIONS = (
    *(
        "What does the documentation say about {s}?",
        "Tell me more about {s}.",
        "Quote the documentation on {s}.",
    ),
    *("What does the Python documentation say about {s}?", "Show me the documentation of {s}."),
)


@dataclass(frozen=True, slots=True)
class Topic:
    """One topic: its name in `pydoc_data`, its title and its cleaned paragraphs."""

    name: str
    title: str
    paragraphs: tuple[str, ...]


def load_topics(*, held_out: bool) -> tuple[Topic, ...]:
    """Read and clean the topics.

    Args:
        held_out: Whether to return the held-out topics or those for training.

    Returns:
        Topics with at least one paragraph, sorted by name. The held-out ones have no paragraph that also
        occurs in a training topic.
    """
    cleaned = [_clean(name, text) for name, text in sorted(topics.items())]
    chosen = [topic for topic in cleaned if (topic.name in HELD_OUT_TOPICS) == held_out and topic.paragraphs]
    others = {text for topic in cleaned if topic.name in HELD_OUT_TOPICS for text in topic.paragraphs}
    if held_out:
        return tuple(chosen)
    kept = [Topic(t.name, t.title, tuple(p for p in t.paragraphs if p not in others)) for t in chosen]
    return tuple(topic for topic in kept if topic.paragraphs)


def first_sentences(paragraph: str, limit: int) -> str:
    """Take whole sentences from the start of a paragraph: at least one, and then up to `limit` characters."""
    sentences = re.split(r"(?<=[.!?]) (?=[A-Z])", paragraph)
    text = sentences[0]
    for sentence in sentences[1:]:
        if len(text) + len(sentence) >= limit:
            break
        text += " " + sentence
    return text


def draw_passage(rng: Random, topics_: tuple[Topic, ...], limit: int) -> tuple[str, bool]:
    """Draw consecutive paragraphs of one topic.

    Args:
        rng: Source of the choice; longer topics are more likely.
        topics_: Topics to draw from.
        limit: Number of characters after which no paragraph is added.

    Returns:
        The text, with paragraphs joined by newlines, and whether it reaches the end of its topic.
    """
    topic = rng.choices(topics_, [len(topic.paragraphs) for topic in topics_])[0]
    start = 0 if rng.random() < 0.2 else rng.randrange(len(topic.paragraphs))
    text = topic.paragraphs[start]
    for index in range(start + 1, len(topic.paragraphs)):
        if len(text) >= limit:
            return text, False
        text += "\n" + topic.paragraphs[index]
    return text, True


def draw_documentation_question(rng: Random, topics_: tuple[Topic, ...]) -> tuple[str, str]:
    """Draw a question about a documentation topic, with the opening of that topic as its answer."""
    topic = rng.choice(topics_)
    question = rng.choice(_QUESTIONS).format(s=topic.title[:1].lower() + topic.title[1:])
    return question, first_sentences(topic.paragraphs[0], 300)


def _clean(name: str, text: str) -> Topic:
    blocks = re.split(r"\n\s*\n", text)
    title = blocks[0].strip().split("\n")[0]
    paragraphs = []
    for block in blocks:
        if block.startswith("   ") and not re.match(r"   [A-Z][a-z]+ ", block):
            continue
        plain = " ".join(line.strip() for line in _MARKUP.sub("", block).split("\n"))
        plain = (
            re.sub(r"\s+", " ", plain)
            .replace("\u2019", "'")
            .replace("\u2026", "...")
            .replace("\u2013", "-")
            .replace("\u2014", "-")
        )
        plain = re.sub(r"\s*\([Ss]ee [^)]*\)|^- ", "", plain).strip()
        if _is_sentence(plain) and plain not in paragraphs:
            paragraphs.append(plain)
    return Topic(name, _MARKUP.sub("", title).strip(), tuple(paragraphs))


def _is_sentence(plain: str) -> bool:
    """Whether a cleaned block is English text and not a table, a grammar or code."""
    letters = sum(char.isalpha() or char == " " for char in plain)
    whole = len(plain.split()) >= 8 and plain.endswith(".") and plain[0].isupper()
    return whole and not _BAD.search(plain) and letters > 0.88 * len(plain)
