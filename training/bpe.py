"""Trains the demo model's byte-level BPE and defines its special tokens and chat template.

Digits are separate tokens and real names are rare in the corpus. Numbers and names are therefore split into
short tokens that also occur in many other words, which makes copying them easier to learn.
"""

from random import Random

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from training import prose
from training.dialogues import DialogueMessage, draw_conversation

BOS, END, SYSTEM, USER, ASSISTANT = "<|bos|>", "<|end|>", "<|system|>", "<|user|>", "<|assistant|>"
SPECIAL_TOKENS = (BOS, END, SYSTEM, USER, ASSISTANT)
CHAT_TEMPLATE = (
    "{{ bos_token }}"
    "{% for message in messages %}"
    "{% if message['role'] not in ['system', 'user', 'assistant'] %}"
    "{{ raise_exception('Role ' + message['role'] + ' is not one of system, user, assistant.') }}"
    "{% endif %}"
    "{{ '<|' + message['role'] + '|>' + (message['content'] | trim) + '<|end|>' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)
_CORPUS_CONVERSATIONS = 3000


def train_tokenizer(vocab_size: int, seed: int) -> Tokenizer:
    """Train the byte-level BPE (Sennrich et al., 2016) on prose and conversations.

    Args:
        vocab_size: Number of tokens, the 256 bytes and the special tokens included.
        seed: Seed of the conversations.

    Returns:
        A tokenizer that puts `<|bos|>` before a text if special tokens are requested.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[AddedToken(token, special=True, normalized=False) for token in SPECIAL_TOKENS],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_corpus(seed), trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A", pair=f"{BOS} $A $B", special_tokens=[(BOS, tokenizer.token_to_id(BOS))]
    )
    return tokenizer


def special_ids(tokenizer: Tokenizer) -> dict[str, int]:
    """Give the id of each special token.

    Raises:
        ValueError: The tokenizer was not made by this package.
    """
    found = {token: tokenizer.token_to_id(token) for token in SPECIAL_TOKENS}
    missing = [token for token, token_id in found.items() if token_id is None]
    if missing:
        raise ValueError(f"the tokenizer has no token {missing[0]}; train it with train_tokenizer")
    return {token: token_id for token, token_id in found.items() if token_id is not None}


def render(messages: list[DialogueMessage], *, add_generation_prompt: bool) -> str:
    """Render a conversation as the chat template does."""
    turns = "".join(f"<|{message.role}|>{message.content.strip()}{END}" for message in messages)
    return BOS + turns + (ASSISTANT if add_generation_prompt else "")


def _corpus(seed: int) -> list[str]:
    rng = Random(seed)
    texts = [paragraph for topic in prose.load_topics(held_out=False) for paragraph in topic.paragraphs]
    for _ in range(_CORPUS_CONVERSATIONS):
        texts += [message.content for message in draw_conversation(rng, turns=rng.randint(1, 4))]
    return texts
