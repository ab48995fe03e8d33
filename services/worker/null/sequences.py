"""The sequences of the null engine: checks the plan of a step, and answers it with tokens.

A token that a mask or `min_tokens` forbids is replaced by another one, chosen by the position as well. All
that ranks rely on in a plan is checked: contiguous positions, blocks that exist and are released, and blocks
shared only if they hold the tokens of both sequences.
"""

from collections.abc import Sequence

from services.worker.null.adapters import NullAdapters, shift_of
from services.worker.null.blocks import NullBlocks, NullSequence
from services.worker.null.prompts import prompt_parts
from services.worker.rank_protocol.failures import EngineFailed
from services.worker.rank_protocol.plan import (
    Alternative,
    NewSequence,
    Sampled,
    ScheduledChunk,
    StepPlan,
)
from services.worker.rank_protocol.prompt_parts import PromptPart
from services.worker.rank_protocol.step_masks import ANY_TOKEN


class NullSequences:
    """All sequences that were admitted and not released.

    Args:
        tokens: The answer, repeated: position p gets tokens[p % len(tokens)], with an adapter a later one.
        num_blocks: Size of the KV cache, in blocks.
        vocab_size: Number of token ids.

    Attributes:
        adapters: The slots for adapters.
    """

    def __init__(self, tokens: list[int], num_blocks: int, vocab_size: int) -> None:
        self._tokens = tokens
        self._num_blocks = num_blocks
        self._vocab_size = vocab_size
        self.adapters = NullAdapters(self._is_in_use)
        self.reset()

    def reset(self) -> None:
        """Drops all sequences."""
        self._known: dict[int, NullSequence] = {}
        self.adapters.reset()
        self.blocks = NullBlocks(self._num_blocks)

    def compute_step(
        self, plan: StepPlan, masks: Sequence[bytes], prompts: list[PromptPart]
    ) -> list[Sampled]:
        """Computes one step, appends what it has of prompts to `prompts`, and returns its tokens.

        Raises:
            EngineFailed: The plan is wrong.
        """
        self._begin(plan, len(masks))
        tokens, cycle, sampled, next_mask = self._tokens, len(self._tokens), [], iter(masks)
        blocks = self.blocks
        for piece in plan.chunks:
            found = self._known.get(piece.seq_id)
            if found is not None and found.plain and blocks.write_next(found, piece):  # nearly all
                token_id = tokens[(found.computed + found.shift) % cycle]
                found.tokens.append(token_id)
                sampled.append(Sampled(seq_id=piece.seq_id, token_id=token_id))
                continue
            known = self._extend(piece)
            if known.new is not None:
                prompts += prompt_parts(known.new, piece.start, known.computed)
            if piece.drafts:
                sampled += self._check_drafts(piece, known)
                continue
            if piece.sample:
                if known.computed != len(known.tokens):
                    raise EngineFailed(f"sequence {piece.seq_id} is sampled in the middle of its tokens")
                token_id = tokens[(known.computed + known.shift) % cycle]
                known.masked = piece.masked
                if piece.masked or known.early_ends:
                    mask = next(next_mask) if piece.masked else ANY_TOKEN
                    token_id = known.choose(token_id, mask, self._vocab_size)
                    if token_id < 0:
                        known.tokens.append(0)
                        sampled.append(
                            Sampled(
                                seq_id=piece.seq_id, token_id=0, error="no token may come", cause="demand"
                            )
                        )
                        continue
                known.tokens.append(token_id)
                if known.logprobs < 0:
                    sampled.append(Sampled(seq_id=piece.seq_id, token_id=token_id))
                else:
                    top = [Alternative(token_id, 0.0)] if known.logprobs else []
                    sampled.append(Sampled(seq_id=piece.seq_id, token_id=token_id, logprob=0.0, top=top))
        return sampled

    def _begin(self, plan: StepPlan, num_masks: int) -> None:
        """Releases and admits sequences."""
        for seq_id in plan.release:
            self._release(seq_id)
        self.adapters.begin_step(plan.step_id)
        for first, end in plan.vacate:
            self.blocks.vacate(first, end)
        for new in plan.admit:
            self._admit(new)
        if num_masks != sum([piece.masked for piece in plan.chunks]):
            raise EngineFailed(f"step {plan.step_id} came with {num_masks} masks")

    def _release(self, seq_id: int) -> None:
        known = self._known.pop(seq_id, None)
        if known is None:
            raise EngineFailed(f"the plan releases sequence {seq_id}, which is not there")
        self.blocks.release_blocks(known)

    def _check_drafts(self, piece: ScheduledChunk, known: NullSequence) -> list[Sampled]:
        """Samples between the drafts of a chunk, up to the first that differs; the others are forgotten."""
        first = piece.start + piece.num_tokens - piece.drafts
        drafts = known.tokens[first:]
        del known.tokens[first:]
        sampled: list[Sampled] = []
        for index in range(piece.drafts + 1):
            token_id = self._tokens[(first + index + known.shift) % len(self._tokens)]
            if known.early_ends:
                token_id = known.choose(token_id, ANY_TOKEN, self._vocab_size)
            top = [Alternative(token_id, 0.0)] if known.logprobs > 0 else []
            sampled.append(Sampled(seq_id=piece.seq_id, token_id=token_id, top=top))
            known.tokens.append(token_id)
            if drafts[index : index + 1] != [token_id]:
                self.blocks.forget_tokens(known, first + index)
                break
        return sampled

    def _admit(self, new: NewSequence) -> None:
        if new.seq_id in self._known:
            raise EngineFailed(f"the plan admits sequence {new.seq_id} a second time")
        if not 0 < new.prompt_len <= len(new.token_ids):
            raise EngineFailed(f"sequence {new.seq_id} has a prompt of {new.prompt_len} tokens")
        adapter = self.adapters.fingerprint(new.adapter)
        self._known[new.seq_id] = NullSequence(new, adapter, shift_of(adapter, len(self._tokens)))

    def _is_in_use(self, slot: int) -> bool:
        return any(one.slot == slot for one in self._known.values())

    def _extend(self, piece: ScheduledChunk) -> NullSequence:
        known = self._known.get(piece.seq_id)
        if known is None:
            raise EngineFailed(f"the plan computes sequence {piece.seq_id}, which was not admitted")
        start, token_ids, follow = piece.start, piece.token_ids, piece.follow
        count = len(token_ids) or int(follow)
        if piece.new_blocks:
            self.blocks.append_blocks(known, piece.new_blocks, start)
        if start != known.computed or not count or (follow and token_ids):
            raise EngineFailed(
                f"sequence {piece.seq_id} is computed up to {known.computed}, "
                f"the plan goes on at {start} with {count} tokens"
            )
        if (known.masked or piece.drafts) and not follow:
            known.tokens += token_ids[len(known.tokens) - start :]  # forced by its grammar
        if start + count > len(known.tokens):
            raise EngineFailed(
                f"sequence {piece.seq_id} has {len(known.tokens)} tokens, nothing follows them yet"
            )
        if not follow and known.tokens[start : start + count] != token_ids:
            raise EngineFailed(f"the plan has other tokens at {start} than sequence {piece.seq_id} has")
        self.blocks.write_tokens(known, count)
        return known
