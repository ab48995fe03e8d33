"""One fine-tuning from the file of chats to the adapter: reads, checks, trains, saves."""

import resource
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from services.worker.model_files.model import Model
from shared.host.cores_and_memory import available_bytes
from training.finetune.base_model import (
    add_adapter,
    computes_bf16,
    fingerprint,
    load_base,
    read_shape,
    save_adapter,
)
from training.finetune.chats import Chat, read_chats
from training.finetune.checkpoints import find_checkpoint, read_checkpoint, remove_checkpoints, require_same
from training.finetune.errors import BadChats, FinetuneError
from training.finetune.memory_estimate import MemoryEstimate, estimate, in_mib, require_room
from training.finetune.pack_loss import PackModel
from training.finetune.packing import Course, Pack, pack, plan_course, split
from training.finetune.plan import FinetunePlan
from training.finetune.rendering import ChatRenderer, TokenChat
from training.finetune.trainer import Trainer, TrainState

_MOST_SHOWN = 5


@dataclass(frozen=True, slots=True)
class FinetuneReport:
    """What a training did.

    Attributes:
        tokens: Computed in training.
        loss: Of the last step.
        held_out_before: Loss before the first step; None without held-out chats.
        held_out: The lowest one, that of the adapter.
        best_step: Its step.
        wall_s: Of this run, with loading.
        cpu_s: The same in CPU time of all threads.
        peak_bytes: Of the process.
        free_bytes: What was free before.
    """

    steps: int
    of_steps: int
    tokens: int
    loss: float
    held_out_before: float | None
    held_out: float | None
    best_step: int
    wall_s: float
    cpu_s: float
    peak_bytes: int
    free_bytes: int
    estimate: MemoryEstimate


def finetune(
    plan: FinetunePlan,
    model: Model,
    *,
    resume: bool = False,
    is_stopped: Callable[[], bool] = lambda: False,
    note: Callable[[str], None] = lambda _: None,
    progress: Callable[[TrainState], None] = lambda _: None,
) -> FinetuneReport:
    """Train an adapter and write it to the plan's output.

    Args:
        model: The base as the leader of a group reads it: tokenizer, template, ends of answers.
        resume: Go on after the newest checkpoint in the output.
        is_stopped: Asked after each step.
        note: Called with sentences about what is done.
        progress: Called after each step.

    Raises:
        FinetuneError: Something does not allow it.
        Stopped: `is_stopped` said so.
    """
    wall, cpu = time.monotonic(), time.process_time()
    require_output(plan, resume=resume)
    free, bf16 = available_bytes(), plan.base_bits != 32 and computes_bf16()
    if plan.length > model.context_length:
        raise FinetuneError(
            f"`--length {plan.length}` is more than the model's context of {model.context_length} tokens"
        )
    chats, data_sha = read_chats(plan.data)
    rendered = render(chats, plan, model, note)
    course, held_out = arrange(rendered, plan)
    identity = plan.decisive() | {
        "data_sha256": data_sha, "base_sha256": fingerprint(plan.base), "bf16": bf16,
    }  # fmt: skip
    state = None
    if resume:
        found = find_checkpoint(plan.output)
        assert found is not None  # `require_output` has seen it
        state = read_checkpoint(found)
        require_same(state.identity, identity)
    shape, names = read_shape(plan)
    packs = [*(one for step in course.steps for one in step), *held_out]
    longest = max(sum(len(rendered[index].tokens) for index in one) for one in packs)
    learned = max(sum(rendered[index].num_answers for index in one) for one in packs)
    need = estimate(shape, plan, bf16=bf16, length=longest, learned=learned)
    require_room(need, free, plan)
    note(f"memory: about {need.text()}; {in_mib(free)} are free")
    with deterministic(plan.seed, plan.threads):
        adapted = add_adapter(load_base(plan, bf16=bf16), plan, names)
        weights = sum(one.numel() for one in adapted.parameters() if one.requires_grad)
        kinds = ", ".join(sorted({name.rpartition(".")[2] for name in names}))
        note(f"adapter: rank {plan.rank} on {kinds}; {weights:,} weights")
        packed = PackModel(adapted, bf16=bf16)
        if together := next((one for one in packs if len(one) > 1), None):
            packed.require_separate([rendered[index] for index in together])
        torch.manual_seed(plan.seed)
        plan.output.mkdir(parents=True, exist_ok=True)
        trainer = Trainer(
            packed,
            plan,
            course=course,
            chats=rendered,
            held_out=held_out,
            identity=identity,
            is_stopped=is_stopped,
        )
        if state is not None:
            trainer.resume(state)
            note(f"resumed after step {trainer.step} of {len(course.steps)}")
        loss = trainer.train(progress)
        save_adapter(adapted, trainer.best, plan.output)
    remove_checkpoints(plan.output)
    return FinetuneReport(
        steps=trainer.step,
        of_steps=len(course.steps),
        tokens=trainer.tokens,
        loss=loss,
        held_out_before=trainer.first_held_out,
        held_out=trainer.held.best,
        best_step=trainer.held.best_step or trainer.step,
        wall_s=time.monotonic() - wall,
        cpu_s=time.process_time() - cpu,
        peak_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        free_bytes=free,
        estimate=need,
    )


def require_output(plan: FinetunePlan, *, resume: bool) -> None:
    """Refuse an output that has something else, or nothing to resume.

    Raises:
        FinetuneError: The text says what to do.
    """
    if (plan.output / "adapter_model.safetensors").exists():
        raise FinetuneError(
            f"There is an adapter in {plan.output} already; name another directory, or remove it"
        )
    found = find_checkpoint(plan.output)
    if resume and found is None:
        raise FinetuneError(
            f"There is no checkpoint in {plan.output} to resume from; start without `--resume`"
        )
    if not resume and found is not None:
        raise FinetuneError(
            f"{plan.output} has a training that was interrupted ({found.name}); go on with `--resume`, or "
            "remove it"
        )


def render(
    chats: Sequence[Chat], plan: FinetunePlan, model: Model, note: Callable[[str], None]
) -> list[TokenChat]:
    """Turn chats into tokens.

    Raises:
        BadChats: Some are refused, or too long.
    """
    renderer, done, problems, long = ChatRenderer(model), list[TokenChat](), list[str](), 0
    for chat in chats:
        try:
            one = renderer.tokens_of(chat)
        except FinetuneError as error:
            problems.append(str(error))
            continue
        if len(one.tokens) <= plan.length:
            done.append(one)
        elif plan.skip_long:
            long += 1
        else:
            problems.append(
                f"line {one.line}: {len(one.tokens)} tokens, and `--length` is {plan.length}; take a larger "
                "one, or `--skip-long`"
            )
    if problems:
        more = len(problems) - _MOST_SHOWN
        rest = [f"and {more} more lines"] if more > 0 else []
        raise BadChats("\n".join([f"{plan.data}: {text}" for text in problems[:_MOST_SHOWN]] + rest))
    if not done:
        raise BadChats(f"All chats of {plan.data} are longer than `--length {plan.length}`")
    learned, tokens = sum(one.num_answers for one in done), sum(len(one.tokens) for one in done)
    how = "by the template's marks" if renderer.has_marks else "by rendering up to each"
    skipped = f", {long} longer ones left out" if long else ""
    note(
        f"data: {len(done)} chats{skipped}, {tokens:,} tokens, {learned:,} of them learned (answers found "
        f"{how})"
    )
    if not all(renderer.ends_answers(one) for one in done):
        note("some answers end without a token that ends an answer: the adapter will not learn to stop there")
    return done


def arrange(chats: Sequence[TokenChat], plan: FinetunePlan) -> tuple[Course, list[Pack]]:
    """Plan all steps, and pack the held-out chats."""
    trained, held_out = split(len(chats), plan.held_out, plan.seed)
    sizes = [len(chat.tokens) for chat in chats]
    course = plan_course(
        trained,
        sizes,
        length=plan.length,
        packs=plan.packs,
        epochs=plan.epochs,
        evaluations=plan.evaluations,
        seed=plan.seed,
        alone=not plan.packing,
    )
    return course, pack(held_out, sizes, plan.length, alone=not plan.packing)


@contextmanager
def deterministic(seed: int, threads: int) -> Iterator[None]:
    """Let torch compute with a seed, so many threads, and algorithms that give equal sums each time."""
    before: Any = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled(), torch.get_rng_state()
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(True)
    torch.manual_seed(seed)
    try:
        yield
    finally:
        torch.set_num_threads(before[0])
        torch.use_deterministic_algorithms(before[1])
        torch.set_rng_state(before[2])
