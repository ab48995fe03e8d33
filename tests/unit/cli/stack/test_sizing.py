"""What `ryz up` chooses for a model and a machine."""

import re
from dataclasses import replace

import pytest

from cli.stack.memory_needs import (
    GROUP_BYTES,
    KV_TOKENS,
    LEAST_STORE_BYTES,
    SERVICES_BYTES,
    STORE_OVERHEAD,
    GivenSizing,
    MachineFacts,
)
from cli.stack.sizing import (
    DoesNotFit,
    choose_sizing,
    sizing_of,
)
from cli.stack.sizing_text import describe_losses, describe_sizing, refusal
from services.worker.engine.checkpoint.model_size import ModelSize

GIB = 2**30
LAPTOP = MachineFacts(cores=2, free_bytes=20 * GIB, kernels=True)
# the counts of SmolLM2-135M: 30 layers, hidden 576, 9 heads on 3, MLP 1,536, 49,152 tokens, tied
SMALL = ModelSize(
    matrices=134_479_872,
    embedding=28_311_552,
    others=35_136,
    tied=True,
    stored_bytes=4,
    kv_values=11_520,
    stored="codes",
    code_bytes=0.625,
)
LARGE = ModelSize(
    matrices=7_000_000_000,
    embedding=500_000_000,
    others=0,
    tied=False,
    stored_bytes=2,
    kv_values=65_536,
    stored="codes",
    code_bytes=1.0625,
)
OPEN = GivenSizing()


def test_a_small_model_on_a_laptop_gets_two_groups_that_share_the_cores() -> None:
    sizing = choose_sizing(SMALL, 8192, LAPTOP, OPEN)
    assert (sizing.groups, sizing.tensor_parallel, sizing.threads) == (2, 1, 1)
    assert (sizing.precision, sizing.kv_cache_tokens) == ("codes", KV_TOKENS)
    line = describe_sizing(sizing, SMALL, LAPTOP)
    assert line.startswith("135 M parameters on 2 cores, 20.0 GiB free: two groups")
    assert "weights as codes, fp16 KV" in line
    assert "65,536 tokens" in line


def test_without_kernels_weights_stay_as_they_are() -> None:
    bare = replace(LAPTOP, kernels=False)
    sizing = choose_sizing(SMALL, 8192, bare, OPEN)
    assert sizing.precision == "fp32"
    assert "no compiled kernels" in describe_sizing(sizing, SMALL, bare)


def test_a_tiny_model_stays_in_full_precision() -> None:
    tiny = ModelSize(2_000_000, 500_000, 1_000, True, 4, 512)
    assert choose_sizing(tiny, 2048, LAPTOP, OPEN).precision == "fp32"


def test_one_group_where_two_do_not_fit_and_less_kv_where_memory_is_short() -> None:
    short = replace(LAPTOP, free_bytes=12 * GIB)
    sizing = choose_sizing(LARGE, 8192, short, OPEN)
    assert (sizing.groups, sizing.precision, sizing.threads) == (1, "codes", 2)
    assert LARGE.weight_bytes("codes") < sizing.needed_bytes <= short.free_bytes
    assert 2048 <= sizing.kv_cache_tokens < KV_TOKENS
    assert sizing.kv_cache_tokens % 16 == 0


def test_what_options_say_is_kept() -> None:
    given = GivenSizing(groups=3, tensor_parallel=2, threads=5, precision="fp32", kv_cache_tokens=1024)
    sizing = choose_sizing(SMALL, 8192, LAPTOP, given)
    assert (sizing.groups, sizing.tensor_parallel, sizing.threads) == (3, 2, 5)
    assert (sizing.precision, sizing.kv_cache_tokens) == ("fp32", 1024)


@pytest.mark.parametrize(
    ("free", "given", "remedy"),
    [
        (6, OPEN, "a smaller model"),
        (10, GivenSizing(precision="fp32"), "`--precision int8`"),
        (10, GivenSizing(groups=2), "`--groups 1`"),
        (6, GivenSizing(groups=2), "GiB more free memory"),
        (10, GivenSizing(kv_cache_tokens=10**6), "`--kv-cache-tokens` (RYZ_KV_CACHE_TOKENS) of"),
    ],
)
def test_what_does_not_fit_is_refused_with_figures(free: int, given: GivenSizing, remedy: str) -> None:
    machine = replace(LAPTOP, free_bytes=free * GIB)
    with pytest.raises(DoesNotFit):
        choose_sizing(LARGE, 8192, machine, given)
    message = refusal(LARGE, 8192, machine, given)
    assert re.search(r"would need [\d.]+ GiB:.*for weights.* Free are [\d.]+ GiB, of which", message)
    assert remedy in message


def test_every_rank_gets_a_thread() -> None:
    many = GivenSizing(groups=2, tensor_parallel=64)
    assert choose_sizing(SMALL, 8192, LAPTOP, many).threads == 1
    assert choose_sizing(SMALL, 8192, replace(LAPTOP, cores=64), OPEN).threads == 32


def test_the_least_that_fits_is_taken() -> None:
    """The border: exactly enough for one group with the least KV, and one byte less."""
    least = GROUP_BYTES + SMALL.weight_bytes("codes") + 2048 * SMALL.kv_token_bytes("codes")
    machine = replace(LAPTOP, free_bytes=least + SERVICES_BYTES)  # which is more than a twentieth
    assert choose_sizing(SMALL, 8192, machine, OPEN).kv_cache_tokens == 2048
    with pytest.raises(DoesNotFit):
        choose_sizing(SMALL, 8192, replace(machine, free_bytes=machine.free_bytes - 1), OPEN)


def test_layers_with_a_window_count_as_the_pool_that_they_have() -> None:
    """The counts of Gemma 3 270M: 15 of 18 layers see 512 tokens."""
    gemma = replace(SMALL, kv_values=9_216, windowed_values=7_680, window=512)
    few = GivenSizing(kv_cache_tokens=65_536, max_running=4, groups=1)
    sizing = choose_sizing(gemma, 32_768, LAPTOP, few)
    # 4 sequences of 512 // 16 + 3 blocks, steps in flight, and an eighth of 4,096 blocks
    pools = gemma.pools(65_536, few.token_budget, 4)
    assert 4 * 35 + 512 < pools.num_sliding < pools.num_blocks == 4_096
    assert sizing.sliding_tokens == pools.num_sliding * 16
    cache = 16 * 2 * (1_536 * pools.num_blocks + 7_680 * pools.num_sliding)
    assert sizing.needed_bytes == GROUP_BYTES + gemma.weight_bytes("codes") + cache
    assert f"({sizing.sliding_tokens:,} in layers with a sliding window)" in describe_sizing(
        sizing, gemma, LAPTOP
    )
    many = choose_sizing(gemma, 32_768, LAPTOP, replace(few, max_running=128))
    assert many.sliding_tokens == 0, "a pool of their own would save nothing"
    assert many.needed_bytes == GROUP_BYTES + gemma.weight_bytes("codes") + 65_536 * 2 * 9_216


@pytest.mark.parametrize("max_running", [1, 16, 128])
def test_as_many_tokens_as_fit_with_their_windows(max_running: int) -> None:
    gemma = replace(SMALL, kv_values=9_216, windowed_values=7_680, window=512)
    for memory in (0, 10**6, 10**8, 10**9):
        tokens = gemma.fitting_tokens(memory, "int8", 512, max_running)
        assert gemma.cache_bytes(gemma.pools(tokens, 512, max_running), "int8") <= memory
        more = gemma.pools(tokens + 1_024, 512, max_running)
        assert gemma.cache_bytes(more, "int8") > memory


# what a machine of so much memory may have free, and what 40 % of it are for the stores
MACHINES = [
    MachineFacts(cores=2, free_bytes=free, kernels=True, store_bytes=int(0.4 * total))
    for total in (2 * GIB, 4 * GIB, 8 * GIB, 16 * GIB, 32 * GIB, 64 * GIB, 128 * GIB, 512 * GIB)
    for free in (total // 8, total // 2, int(0.9 * total))
]


def model_of(num_bytes: int) -> ModelSize:
    """A model whose files have so many bytes in bf16, with the KV of its kind."""
    values = num_bytes // 2
    kv_values = max(512, round(2048 * (num_bytes / GIB) ** 0.75))
    return ModelSize(values * 9 // 10, values // 10, 10_000, False, 2, kv_values, stored="bf16")


MODELS = [model_of(num_bytes) for num_bytes in (10**7, 98 * 10**6, 10**9, 7 * 10**9, 30 * 10**9, 400 * 10**9)]


@pytest.mark.parametrize("machine", MACHINES, ids=lambda one: f"{one.free_bytes / GIB:.1f}-GiB-free")
@pytest.mark.parametrize("size", MODELS, ids=lambda one: f"{one.parameters * 2 // 10**6}-MB")
def test_all_may_grow_to_their_bounds_and_two_groups_are_preferred(
    size: ModelSize, machine: MachineFacts
) -> None:
    """No rank is killed for want of memory when KV caches and stores are full at the same time."""
    fits = {groups: sizing_of(size, 8192, machine, OPEN, groups) for groups in (1, 2)}
    if fits[1] is None:
        least = GROUP_BYTES + size.weight_bytes("bf16") + size.kv_token_bytes("bf16") * 2048
        assert least + LEAST_STORE_BYTES * STORE_OVERHEAD > machine.room_bytes
        message = refusal(size, 8192, machine, OPEN)
        assert " more free memory" in message
        return
    sizing = choose_sizing(size, 8192, machine, OPEN)
    assert sizing == (fits[2] or fits[1])
    assert sizing.needed_bytes + sizing.store_bytes * STORE_OVERHEAD <= machine.room_bytes
    assert LEAST_STORE_BYTES <= sizing.store_bytes <= machine.store_bytes
    assert 2048 <= sizing.kv_cache_tokens <= KV_TOKENS
    message = describe_losses(sizing, size, 8192, machine, OPEN)
    assert ("One group only" in message) == (sizing.groups == 1)
    assert ("in place of 65,536" in message) == (sizing.kv_cache_tokens < KV_TOKENS)


def test_stores_do_not_take_failover_away() -> None:
    """A machine with 11 GiB free of 23.5, and a model of 98 MB: the stores' 40 % were all but 1 GiB of it."""
    machine = MachineFacts(cores=2, free_bytes=11 * GIB, kernels=True, store_bytes=int(9.4 * GIB))
    sizing = choose_sizing(SMALL, 8192, machine, OPEN)
    assert (sizing.groups, sizing.kv_cache_tokens) == (2, KV_TOKENS)
    assert 5 * GIB < sizing.store_bytes < 9.4 * GIB
    assert describe_losses(sizing, SMALL, 8192, machine, OPEN) == ""


def test_stores_get_a_quarter_where_the_kv_could_take_all() -> None:
    machine = replace(LAPTOP, free_bytes=24 * GIB, store_bytes=10 * GIB)
    sizing = choose_sizing(LARGE, 8192, machine, OPEN)
    rest = machine.room_bytes - 2 * (GROUP_BYTES + LARGE.weight_bytes("codes"))
    assert sizing.groups == 2
    assert sizing.kv_cache_tokens < KV_TOKENS
    assert sizing.store_bytes * STORE_OVERHEAD == pytest.approx(rest / 4, rel=0.02)
    # and no more than the least where the second group needs their room
    least = 2 * (GROUP_BYTES + LARGE.weight_bytes("codes") + 2048 * LARGE.kv_token_bytes("codes"))
    short = replace(machine, free_bytes=int((least + 1.2 * LEAST_STORE_BYTES) / 0.95))
    sizing = choose_sizing(LARGE, 8192, short, OPEN)
    assert sizing.groups == 2
    assert 2048 <= sizing.kv_cache_tokens < 2100
    assert LEAST_STORE_BYTES <= sizing.store_bytes < 1.1 * LEAST_STORE_BYTES


def test_what_was_given_up_names_what_brings_it_back() -> None:
    machine = replace(LAPTOP, free_bytes=3 * GIB, store_bytes=4 * GIB)
    size = model_of(10**9)
    message = describe_losses(choose_sizing(size, 8192, machine, OPEN), size, 8192, machine, OPEN)
    assert "One group only, since two do not fit: running streams end if it fails." in message
    more = re.search(r"(\d+) MiB more free memory", message)
    assert more
    enough = replace(machine, free_bytes=machine.free_bytes + int(more.group(1)) * 2**20)
    assert choose_sizing(size, 8192, enough, OPEN).groups == 2
    int8 = replace(OPEN, precision="int8")
    for free in range(1, 9):
        here = replace(machine, free_bytes=free * GIB // 2)
        one = sizing_of(size, 8192, here, OPEN, 1)
        if one and not sizing_of(size, 8192, here, OPEN, 2):
            message = describe_losses(one, size, 8192, here, OPEN)
            assert ("`--precision int8`" in message) == (sizing_of(size, 8192, here, int8, 2) is not None)
    # who asked for one group is not told what it means
    asked = replace(OPEN, groups=1)
    assert "One group" not in describe_losses(
        choose_sizing(size, 8192, machine, asked), size, 8192, machine, asked
    )
    # less KV for the sake of the second group
    tight = replace(LAPTOP, free_bytes=18 * GIB, store_bytes=GIB)
    two = choose_sizing(LARGE, 8192, tight, OPEN)
    assert two.groups == 2
    one = sizing_of(LARGE, 8192, tight, OPEN, 1)
    assert one
    assert 8192 > two.kv_cache_tokens < one.kv_cache_tokens
    message = describe_losses(two, LARGE, 8192, tight, OPEN)
    assert f"no request may have more. `--groups 1` leaves room for {one.kv_cache_tokens:,}" in message


def test_kv_that_was_asked_for_and_does_not_fit_is_refused_with_what_would() -> None:
    machine = MachineFacts(cores=2, free_bytes=int(10.2 * GIB), kernels=True, store_bytes=int(9.4 * GIB))
    given = GivenSizing(kv_cache_tokens=10**8)
    message = refusal(SMALL, 8192, machine, given)
    found = re.search(r"RYZ_KV_CACHE_TOKENS\) of ([\d,]+) or less", message)
    assert found
    tokens = int(found.group(1).replace(",", ""))
    assert sizing_of(SMALL, 8192, machine, replace(given, kv_cache_tokens=tokens), 1)
    assert sizing_of(SMALL, 8192, machine, replace(given, kv_cache_tokens=tokens + 1024), 1) is None
    fewer = replace(OPEN, groups=40)
    with pytest.raises(DoesNotFit):
        choose_sizing(SMALL, 8192, machine, fewer)
    groups = re.search(r"`--groups (\d+)`", refusal(SMALL, 8192, machine, fewer))
    assert groups
    assert choose_sizing(SMALL, 8192, machine, replace(fewer, groups=int(groups.group(1))))
