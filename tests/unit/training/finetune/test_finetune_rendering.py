"""Which tokens are answers, with templates of many models; where it is not certain, the chat is refused."""

from pathlib import Path

import pytest

from cli.stack.model_dir import demo_model
from services.worker.model_files.load_model import load_model
from services.worker.model_files.model import Model
from services.worker.text.chat_template import ChatTemplate
from services.worker.text.tokenizer import LibraryTokenizer
from shared.messages import ChatMessage
from tests.kits.templates.template_shapes import NAMES, SPECIAL, template_source
from tests.kits.worker.tokenizers import byte_level
from training.finetune.chats import Chat
from training.finetune.errors import FinetuneError
from training.finetune.rendering import ChatRenderer, TokenChat

CHATML = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
MARKED = (
    "{% for message in messages %}{{ '<|im_start|>' + message.role + '\n' }}"
    "{% if message.role == 'assistant' %}"
    "{% generation %}{{ message.content }}<|im_end|>{% endgeneration %}{% else %}"
    "{{ message.content }}<|im_end|>{% endif %}{{ '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def model_of(source: str) -> Model:
    tokenizer = LibraryTokenizer(byte_level())
    return Model(
        name="small", context_length=4096, eos_ids=frozenset({tokenizer.added_ids["<|im_end|>"]}),
        tokenizer=tokenizer, template=ChatTemplate(source, SPECIAL),
    )  # fmt: skip


def chat(*texts: str, trained: set[int] | None = None) -> Chat:
    messages = tuple(
        ChatMessage(role="assistant" if index % 2 else "user", content=text)
        for index, text in enumerate(texts)
    )
    return Chat(9, messages, frozenset(range(1, len(texts), 2) if trained is None else trained))


def learned(model: Model, found: TokenChat) -> list[str]:
    """The texts of runs of learned tokens."""
    runs = list[list[int]]()
    for index, (token, is_answer) in enumerate(zip(found.tokens, found.answers, strict=True)):
        if is_answer and not found.answers[index - 1]:
            runs.append([])
        if is_answer:
            runs[-1].append(token)
    return [model.tokenizer.decode(run) for run in runs]


TALK = ("Hello?", "Hi, the cat.", "And you?", "Fine é.")


@pytest.mark.parametrize("source", [CHATML, MARKED])
def test_answers_and_their_ends_are_learned_and_nothing_else(source: str) -> None:
    model = model_of(source)
    renderer = ChatRenderer(model)
    assert renderer.has_marks == (source == MARKED)
    found = renderer.tokens_of(chat(*TALK))
    assert learned(model, found) == ["Hi, the cat.<|im_end|>", "Fine é.<|im_end|>"]
    assert renderer.ends_answers(found)
    assert found.num_answers == sum(found.answers)
    prompt = model.tokenizer.encode("<|im_start|>user\nHello?<|im_end|>\n", add_special_tokens=False)
    assert list(found.tokens[: len(prompt)]) == prompt


def test_answers_that_are_not_trained_are_passed_over() -> None:
    model = model_of(CHATML)
    found = ChatRenderer(model).tokens_of(chat(*TALK, trained={3}))
    assert learned(model, found) == ["Fine é.<|im_end|>"]


def test_the_text_of_a_control_token_in_a_message_is_ordinary_text() -> None:
    model = model_of(CHATML)
    renderer = ChatRenderer(model)
    found = renderer.tokens_of(chat("<|im_end|>", "It is <|im_end|> there."))
    assert learned(model, found) == ["It is <|im_end|> there.<|im_end|>"]
    assert sum(token in model.eos_ids for token in found.tokens) == 2  # those of the template


def test_a_template_that_ends_no_answer_is_told() -> None:
    bare = "{% for message in messages %}[{{ message.role }}] {{ message.content }}\n{% endfor %}[assistant] "
    model = model_of(bare.replace("[assistant] ", "{% if add_generation_prompt %}[assistant] {% endif %}"))
    renderer = ChatRenderer(model)
    assert not renderer.ends_answers(renderer.tokens_of(chat("Hello?", "Hi.")))


SHOUTING = CHATML.replace(
    "{{ message.content }}",
    "{{ message.content if loop.last or message.role == 'user' else message.content | upper }}",
)
THINKING = CHATML.replace("{% if add_generation_prompt %}", "{% if add_generation_prompt %}<think>\n")
CHANGING = CHATML.replace(
    "{{ message.content }}", "{{ message.content }}, {{ message.content | length }}"
).replace("{{ message.content }}", "{{ message.content | replace('.', '! ') }}")
JOINING = (
    "{% for message in messages %}{{ message.role }}{{ ' t' if message.role == 'assistant' else ': ' }}"
    "{{ message.content }}<|im_end|>{% endfor %}{% if add_generation_prompt %}assistant t{% endif %}"
)
MARKED_ONCE = MARKED.replace("{% generation %}", "{% if loop.last %}{% generation %}").replace(
    "{% endgeneration %}", "{% endgeneration %}{% else %}{{ message.content }}{% endif %}"
)


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        (SHOUTING, "writes answer 1 in another way when messages follow"),
        (THINKING, "begins answer 1 in another way than the prompt for it"),
        (CHANGING, "changes the text of answer 1"),
        (JOINING, "a token lies across the border of an answer"),
        (MARKED_ONCE, "marks 1 answers, and the chat has 2"),
        ("{{ raise_exception('no ' ~ 'chats') }}", "refuses these messages: no chats"),
    ],
)
def test_doubtful_templates_are_refused(source: str, reason: str) -> None:
    with pytest.raises(FinetuneError) as refused:
        ChatRenderer(model_of(source)).tokens_of(chat("Hello?", "he said: the cat.", "And?", "he is fine."))
    assert reason in str(refused.value)


def test_a_model_without_a_template_is_refused() -> None:
    model = model_of(CHATML)
    bare = Model(
        name="bare", context_length=9, eos_ids=model.eos_ids, tokenizer=model.tokenizer, template=None
    )
    with pytest.raises(FinetuneError, match="bare has no chat template"):
        ChatRenderer(bare)


# their prompts begin an answer with reasoning, or earlier answers are written in another way
DOUBTFUL = {
    "deepseek_r1": "begins answer 1 in another way than the prompt",
    "gpt_oss": "writes answer 1 in another way when messages follow",
    "llama_guard3": "writes answer 1 in another way when messages follow",
}


@pytest.mark.parametrize("name", [name for name in NAMES if name not in DOUBTFUL])
def test_templates_of_many_models(name: str) -> None:
    model = model_of(template_source(name))
    found = ChatRenderer(model).tokens_of(chat("Hello?", "Hi, Ada.", "And you?", "Fine, Bob."))
    first, second = learned(model, found)
    assert "Hi, Ada." in first
    assert "Fine, Bob." in second
    assert "And you?" not in first + second
    assert "Hello?" not in first + second


@pytest.mark.parametrize("name", DOUBTFUL)
def test_templates_that_leave_a_doubt(name: str) -> None:
    renderer = ChatRenderer(model_of(template_source(name)))
    with pytest.raises(FinetuneError, match=DOUBTFUL[name]):
        renderer.tokens_of(chat("Hello?", "Hi, Ada.", "And you?", "Fine, Bob."))


def test_the_demo_model_learns_its_own_end(tmp_path: Path) -> None:
    model = load_model(demo_model())
    renderer = ChatRenderer(model)
    found = renderer.tokens_of(chat("My name is Ada.", "Hello Ada.", "What is my name?", "Your name is Ada."))
    assert len(learned(model, found)) == 2
    assert renderer.ends_answers(found)
