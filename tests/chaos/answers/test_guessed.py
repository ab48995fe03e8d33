"""Many answers with and without guesses of the next tokens, by real ranks: all are equal.

`make test` compares some dozens, `make chaos` ten thousand.
"""

import random
from collections.abc import Iterator
from contextlib import AsyncExitStack

import pytest

from benchmarks.engine.driver import start_driver
from cli.stack.model_dir import demo_model
from services.worker.model_files.load_model import load_model
from services.worker.rank_protocol.engine_sampling import EngineSampling
from tests.kits.chaos.figures import record
from tests.kits.chaos.scale import full, scaled
from tests.kits.engine.rank_options import rank_options
from tests.kits.engine.shared_fork_server import sharing

pytestmark = pytest.mark.timeout(scaled(300, 3600))
BATCH, MOST = 8, 8
ANSWERS = scaled(32, 10_000)
TEXTS = (
    "Tell me a story about the old harbour, and then tell it again, word by word: ",
    "Count from one to ten. one two three four five six seven eight nine ten one two three four ",
    "What is your name? ",
)


@pytest.fixture(scope="module", autouse=True)
def shared_fork_server() -> Iterator[None]:
    with sharing():
        yield


def drawn(chance: random.Random) -> EngineSampling:
    """Greedy in half of the batches, else at any temperature, and with penalties in some."""
    greedy = chance.random() < 0.5
    return EngineSampling(
        seed=chance.getrandbits(40),
        temperature=0.0 if greedy else chance.uniform(0.1, 1.5),
        top_p=1.0 if chance.random() < 0.5 else chance.uniform(0.5, 1.0),
        repetition_penalty=1.0 if chance.random() < 0.7 else chance.uniform(0.9, 1.3),
        frequency_penalty=0.0 if chance.random() < 0.7 else chance.uniform(0.0, 1.0),
        ignore_eos=True,
    )


@pytest.mark.parametrize("world", [1, 2])
async def test_answers_with_guesses_are_those_without(world: int) -> None:
    chance, model = random.Random(world), load_model(demo_model())
    texts = [model.tokenizer.encode(text, add_special_tokens=False) for text in TEXTS]
    unequal, answers, checked, right = 0, 0, 0, 0
    async with AsyncExitStack() as stack:
        options = rank_options(demo_model(), tensor_parallel=world, threads=1, kv_cache_tokens=16_384)
        driver, _ = await start_driver(stack, options, BATCH, MOST)
        while answers < ANSWERS // 2:
            sampling, length = drawn(chance), chance.randint(24, 80)
            cuts = [(chance.choice(texts), chance.randint(4, 60)) for _ in range(BATCH)]
            prompts = [[*text[:cut], chance.randrange(200)] for text, cut in cuts]
            driver.speculation.most = 0
            plain = (await driver.run_batch(prompts, length, sampling=sampling)).tokens
            driver.speculation.most = MOST
            found = (await driver.run_batch(prompts, length, sampling=sampling)).tokens
            unequal += sum(one != other for one, other in zip(plain, found, strict=True))
            answers += BATCH
            counts = driver.speculation.take_counts()
            checked, right = checked + counts.draft_tokens, right + counts.accepted_tokens
    record("guessed_answers", world=world, answers=answers, unequal=unequal, checked=checked, right=right)
    assert unequal == 0
    assert right > ANSWERS // 16
    assert checked > right or not full  # a busy machine guesses rarely, and may be right each time
