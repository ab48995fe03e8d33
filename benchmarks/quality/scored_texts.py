"""The token sequences on which precisions are compared: windows of English prose, and questions of a chat.

The prose ships with Python (`pydoc_data.topics`), so it is the same wherever the command runs.
"""

from pydoc_data.topics import topics

from benchmarks.lib.measuring import BenchError
from services.worker.model_files.model import Model
from services.worker.text.chat_template import LIMIT_S
from services.worker.text.control_tokens import ControlTokenGuard
from shared.messages import ChatMessage

_CHARS_PER_TOKEN = 8  # more than any tokenizer needs for this prose; only so much of it is tokenized
QUESTIONS = (
    "What is the capital of France?",
    "Who wrote Romeo and Juliet?",
    "Explain in one sentence what a database index is.",
    "Write a haiku about autumn.",
    "How many days does a leap year have?",
    "What is 17 plus 25?",
    "Name three primary colours.",
    "Translate 'good morning' into Spanish.",
    "Why is the sky blue?",
    "Give me a recipe for pancakes.",
    "What does HTTP stand for?",
    "Write a Python function that reverses a string.",
    "What is the boiling point of water at sea level?",
    "Summarize the story of Cinderella in two sentences.",
    "What is the difference between a list and a tuple in Python?",
    "Suggest a name for a black cat.",
    "How do vaccines work?",
    "What is the largest planet of the solar system?",
    "Write a polite e-mail that asks for a day off.",
    "Who painted the Mona Lisa?",
    "What causes the tides?",
    "List five fruits that are red.",
    "Is a tomato a fruit or a vegetable?",
    "Explain recursion to a child.",
    "What is the square root of 144?",
    "Give me three tips for sleeping better.",
    "What language is spoken in Brazil?",
    "Write a SQL query that counts the rows of a table called users.",
    "What happened in 1969 on the Moon?",
    "How do I boil an egg?",
    "What is photosynthesis?",
    "Write a limerick about a programmer.",
    "Which ocean is the deepest?",
    "What is the plural of mouse?",
    "Tell me a joke.",
    "What is the chemical symbol of gold?",
    "How does a refrigerator keep food cold?",
    "Name two advantages of electric cars.",
    "What is the meaning of the word 'ubiquitous'?",
    "Write a regular expression that matches a four-digit year.",
    "Who was Ada Lovelace?",
    "What should I pack for a week at the beach?",
    "What is inflation in economics?",
    "Describe the taste of a lemon.",
    "How far is the Moon from the Earth?",
    "What is the difference between TCP and UDP?",
    "Write the first sentence of a mystery novel.",
    "How many continents are there?",
    "Give me a synonym for happy.",
    "My name is Ada. What is my name?",
)


def text_windows(model: Model, tokens: int, window: int) -> list[list[int]]:
    """Return the prose in windows of equal length, as many as hold `tokens` tokens.

    Raises:
        BenchError: The prose is shorter than that.
    """
    count = -(-tokens // window)
    prose = "\n\n".join(topics[name] for name in sorted(topics))[: _CHARS_PER_TOKEN * count * window]
    ids = model.tokenizer.encode(prose, add_special_tokens=False)
    if len(ids) < count * window:
        raise BenchError(f"the text has {len(ids)} tokens; ask for fewer --tokens")
    return [ids[number * window : (number + 1) * window] for number in range(count)]


def chat_prompts(model: Model, chats: int) -> list[list[int]]:
    """Return the tokens of so many questions in the model's chat template; none if it has no template."""
    if model.template is None:
        return []
    guard = ControlTokenGuard(model.tokenizer, model.template)
    conversations = ([ChatMessage(role="user", content=question)] for question in QUESTIONS[:chats])
    return [guard.encode_prompt(guard.render_prompt(messages, LIMIT_S)) for messages in conversations]
