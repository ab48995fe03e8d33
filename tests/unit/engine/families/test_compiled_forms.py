"""The compiled path of all families: the same bits in any batch, and near full precision where it rounds."""

from pathlib import Path

import pytest
import torch

from services.worker.engine.native.build import targets
from services.worker.engine.native.layers.unsupported import unsupported
from tests.kits.engine.rank_threads import plain_compute, plan_logits
from tests.kits.families.compiled import (
    FEATURES,
    FORMS,
    Form,
    beside_others,
    compiled,
    feature_model,
    in_one_piece,
    in_pieces,
    relative_error,
    with_config,
)
from tests.kits.families.models import ENTRIES, each_once, family_model, served, text
from tests.kits.families.step_plans import mixed_plans

TARGETS = targets()
NAMES = served(ENTRIES)
ONCE = list(enumerate(each_once(NAMES)))
# relative, root-mean-square, on random weights; seen were 2e-6, up to 0.063, 0.015 to 0.09, and 0.004 to 0.18
# (the largest for Gemma, whose (1 + w) norms make the scores of random weights sharp); a wrong formula gives
# about 1
BOUNDS = {"fp32": 1e-5, "bf16, fp16 KV": 0.08, "int8, fp16 KV": 0.12, "fp8 behind": 0.25}
pytestmark = pytest.mark.skipif(not TARGETS, reason="the kernels are for x86-64 with AVX2")


def check_bits(name: str, form: Form, target: str) -> None:
    """The logits after a whole text: alone, in pieces, and beside others, on any number of threads."""
    directory, words = family_model(name).directory, text("a")[:97]
    wanted = plan_logits(directory, 1, in_one_piece(words), compute=compiled(form, target))[-1][-1]
    assert torch.isfinite(wanted).all()
    others = [text("b")[:90], text("c")[:33], text("b")[:7]]
    for threads, plans in ((2, in_pieces(words, [5, 38, 39, 71, 96])), (3, beside_others(words, others))):
        found = plan_logits(directory, 1, plans, compute=compiled(form, target, threads))[-1][-1]
        assert torch.equal(found, wanted)


def check_near(name: str, form: str, world: int, target: str) -> None:
    """Logits in mixed batches near those of the plain path."""
    directory, plans = family_model(name).directory, mixed_plans(*map(text, "abc"))[0]
    wanted = plan_logits(directory, 1, plans)
    found = plan_logits(directory, world, plans, compute=compiled(FORMS[form], target))
    assert relative_error(found, wanted) < BOUNDS[form]


def skip_uncompiled(name: str) -> None:
    if reason := unsupported(family_model(name).config):
        pytest.skip(reason)


@pytest.mark.parametrize(("number", "name"), ONCE, ids=[name for _, name in ONCE])
def test_same_bits_in_any_batch(number: int, name: str) -> None:
    skip_uncompiled(name)
    check_bits(name, list(FORMS.values())[number % len(FORMS)], TARGETS[number % len(TARGETS)])


@pytest.mark.parametrize(("number", "name"), ONCE, ids=[name for _, name in ONCE])
def test_fewer_bits_are_near(number: int, name: str) -> None:
    skip_uncompiled(name)
    form = list(FORMS)[1 + number % 3]
    check_near(name, form, 1 + number % 2, TARGETS[-1 - number % len(TARGETS)])


@pytest.mark.models
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", NAMES)
def test_all_forms(name: str, form: str, target: str) -> None:
    skip_uncompiled(name)
    check_bits(name, FORMS[form], target)
    for world in ENTRIES[name].worlds[:2]:
        check_near(name, form, world, target)


@pytest.mark.parametrize("name", FEATURES)
def test_what_no_dense_family_has(tmp_path: Path, name: str) -> None:
    config, plans = feature_model(tmp_path, name), mixed_plans(*map(text, "abc"))[0]
    wanted = plan_logits(tmp_path, 1, plans, compute=with_config(config, plain_compute))
    for target in TARGETS:
        for world in (1, 2, 3):
            factory = with_config(config, compiled(Form(), target, world))
            for found, plain in zip(
                plan_logits(tmp_path, world, plans, compute=factory), wanted, strict=True
            ):
                torch.testing.assert_close(found, plain, atol=1e-4, rtol=0)
    whole = plan_logits(tmp_path, 1, in_one_piece(text("a")), compute=with_config(config, compiled(Form())))
    pieces = plan_logits(
        tmp_path, 1, in_pieces(text("a"), [17, 18, 80]), compute=with_config(config, compiled(Form()))
    )
    assert torch.equal(whole[-1][-1], pieces[-1][-1])
