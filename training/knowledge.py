"""Questions about Python with short answers, and small talk with fixed replies.

Templates around each subject's names make the questions, so that the demo model is trained on many phrasings
of the same question.
"""

from random import Random

from training.subjects import SUBJECTS

QUESTIONS: tuple[str, ...] = (
    *(
        "What is {s}?",
        "What is {s}?",
        "What are {s}?",
        "Tell me about {s}.",
        "Tell me about {s}.",
        "Explain {s}.",
    ),
    *("What's {s}?", "Can you tell me about {s}?", "Can you explain {s}?", "What do you know about {s}?"),
    *("How does {s} work?", "Describe {s}.", "Please explain {s}.", "Tell me something about {s}."),
    *("What does {s} do?", "I want to know about {s}.", "Could you explain {s} to me?", "How do I use {s}?"),
    *("Say something about {s}.", "Give me a short explanation of {s}.", "I have a question about {s}."),
)

WHO = "I am the Ryzanstein demo model, a very small language model."
NO_IDEA = "I am only a small demo model, and I do not know that."

SMALL_TALK: tuple[tuple[tuple[str, ...], str], ...] = (
    (
        ("Hello.", "Hi.", "Hey.", "Hello there.", "Hi there!", "Good day.", "Hello!"),
        "Hello! How can I help you?",
    ),
    (("Good morning.", "Good morning!"), "Good morning! How can I help you?"),
    (("Good evening.", "Good evening!"), "Good evening! How can I help you?"),
    (
        ("How are you?", "How are you doing?", "How are you today?", "How is it going?", "How do you feel?"),
        "I am fine, thank you. How can I help you?",
    ),
    (("Thanks.", "Thank you.", "Thank you very much!", "Thanks a lot.", "Many thanks."), "You are welcome."),
    (
        ("Goodbye.", "Bye.", "See you later.", "Bye bye!", "See you.", "Good night."),
        "Goodbye! It was nice to talk to you.",
    ),
    (
        ("Who are you?", "What are you?", "Tell me about yourself.", "Are you a robot?", "Are you human?"),
        WHO,
    ),
    (
        (
            "What is your name?",
            "What's your name?",
            "What are you called?",
            "Do you have a name?",
            "Your name?",
        ),
        "My name is Ryzanstein.",
    ),
    (
        ("What can you do?", "How can you help me?", "Help.", "Can you help me?", "What do you know?"),
        "I can remember what you tell me, repeat after you, and answer simple questions about Python.",
    ),
    (("Who made you?", "Where do you come from?"), "I was trained on a computer by the Ryzanstein project."),
    (
        ("That is great.", "Great!", "Very good.", "Nice.", "Well done.", "You are right.", "Cool."),
        "I am glad to hear that.",
    ),
    (
        ("OK.", "Okay.", "All right.", "I see.", "Fine.", "Yes.", "No."),
        "All right. What else can I do for you?",
    ),
    (("You are wrong.", "That is wrong.", "That is not right."), "I am sorry. I am only a small demo model."),
    (
        ("Tell me a joke.", "Make me laugh.", "Do you know a joke?"),
        "Why do programmers like Python? It has no braces to lose.",
    ),
    (("I am sad.", "I am tired.", "I feel bad.", "I am not well."), "I am sorry to hear that."),
    (
        ("I am happy.", "I feel good.", "I am well.", "I am fine.", "I'm fine, thanks."),
        "I am glad to hear that.",
    ),
)

_PLACES = (
    "France",
    "Germany",
    "Japan",
    "Brazil",
    "Canada",
    "Egypt",
    "India",
    "Peru",
    "Norway",
    "Kenya",
    "the moon",
)
_THINGS = (
    *("the weather", "the news", "a football match", "the stock market", "a train ticket", "the president"),
    *(
        "chemistry",
        "history",
        "music",
        "the stars",
        "a spaceship",
        "cooking",
        "gardening",
        "dinosaurs",
        "poetry",
    ),
    *("the Roman empire", "physics", "a bicycle", "medicine", "the ocean", "tennis", "films", "the economy"),
)
_OPEN_QUESTIONS = (
    *("What is the capital of {p}?", "How many people live in {p}?", "What do you think of {t}?"),
    *(
        "Tell me about {t}.",
        "How does {t} work?",
        "Who invented {t}?",
        "Why is {t} important?",
        "What is {t}?",
    ),
    *(
        "Write a poem about {t}.",
        "Write a story about {t}.",
        "How far is it to {p}?",
        "When was {p} founded?",
    ),
)
_PASTIMES = (
    *("I read a book yesterday.", "I went for a walk.", "It is raining here.", "I had lunch with a friend."),
    *("The sun is shining today.", "I watched a film.", "I bought a new bicycle.", "I am learning to cook."),
    *("My train was late.", "I slept well.", "The coffee is cold.", "I have a lot of work today."),
    *(
        "We played chess.",
        "My computer is slow.",
        "It is cold outside.",
        "I wrote a letter.",
        "I like music.",
    ),
)


def draw_question(rng: Random) -> tuple[str, str]:
    """Draw a question about Python and its answer."""
    subject = SUBJECTS[0] if rng.random() < 0.06 else rng.choice(SUBJECTS)
    return rng.choice(QUESTIONS).format(s=rng.choice(subject.names)), subject.answer


def draw_small_talk(rng: Random) -> tuple[str, str]:
    """Draw a remark and its reply: small talk, a remark about the day, or a question it cannot answer."""
    kind = rng.random()
    if kind < 0.65:
        remarks, reply = rng.choice(SMALL_TALK)
        return rng.choice(remarks), reply
    if kind < 0.8:
        return rng.choice(_PASTIMES), "That sounds interesting. Tell me more."
    question = rng.choice(_OPEN_QUESTIONS)
    return question.format(p=rng.choice(_PLACES), t=rng.choice(_THINGS)), NO_IDEA
