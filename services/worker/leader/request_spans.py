"""The leader's spans of recorded requests: what its time went to, the steps it took part in, and its ranks.

They are made out of the request's timeline and the step log when it has ended. A request that is not recorded
costs the reading of one flag.
"""

from collections.abc import Iterator
from itertools import pairwise

from services.worker.domain.generation.generation import Generation
from services.worker.leader.step_log import StepLog, StepRecord
from services.worker.rank_protocol.step_times import PartsOfStep
from shared.telemetry.spans.facts import Attribute, SpanFacts, SpanSink
from shared.telemetry.spans.names import AGAIN, SPANS, computed_between
from shared.telemetry.spans.trace_ids import TraceParent, new_span_id
from shared.telemetry.timelines import Data, MarkedMoment

_PART_NAMES = tuple(f"ryz.{part}_ms" for part in PartsOfStep._fields)
MAX_STEPS = 128  # of a request, the last ones; reading more would hold up the event loop


class RequestSpans:
    """Begins and ends the traces of one leader's requests.

    Args:
        sink: Takes the spans; None: no request is recorded.
    """

    def __init__(self, sink: SpanSink | None, group: str, step_log: StepLog) -> None:
        self._sink = sink
        self._group = group
        self._step_log = step_log

    def begin(self, traceparent: str) -> tuple[str, str]:
        """Takes the trace context of a request.

        Returns:
            The context for what the request leads to, and the caller's span if the request is recorded, else
            an empty text.
        """
        if self._sink is None or not traceparent:
            return traceparent, ""
        parent = TraceParent.read(traceparent)
        if parent is None or not parent.sampled:
            return traceparent, ""
        return TraceParent(parent.trace_id, new_span_id()).header, parent.span_id

    def end(self, generation: Generation, error: str = "") -> None:
        """Has the spans of a request exported, if it is recorded.

        Args:
            generation: The request, after its last moment was marked.
            error: The code of its failure; empty: it has not failed.
        """
        own = TraceParent.read(generation.traceparent) if generation.parent_span else None
        if self._sink is None or own is None:
            return
        marks = generation.timeline.marked()
        whole = SpanFacts(
            f"generate {generation.request.model}",
            own.trace_id,
            generation.parent_span,
            marks[0].at_ns,
            marks[-1].at_ns,
            self._described(generation),
            "server",
            error,
            own.span_id,
        )
        computing = [mark.at_ns for mark in marks if mark.name == "computing"]
        steps = self._step_log.steps_between(computing[0], marks[-1].at_ns, MAX_STEPS) if computing else []
        self._sink.submit(lambda: _spans(own, whole, marks, steps))

    def _described(self, generation: Generation) -> dict[str, Attribute]:
        request, choices = generation.request, generation.choices
        attributes: dict[str, Attribute] = {
            "gen_ai.request.model": request.model,
            "gen_ai.usage.input_tokens": generation.prompt_tokens,
            "gen_ai.usage.output_tokens": generation.usage.completion_tokens,
            "gen_ai.response.finish_reasons": [choice.finish_reason or "unfinished" for choice in choices],
            "ryz.group": self._group,
            "ryz.attempt": request.attempt,
            "ryz.request_id": request.request_id,
            "ryz.tenant": request.tenant,
        }
        if request.session is not None and request.session.session_id:
            attributes["gen_ai.conversation.id"] = request.session.session_id
        return attributes


def _spans(
    own: TraceParent, whole: SpanFacts, marks: list[MarkedMoment], steps: list[StepRecord]
) -> Iterator[SpanFacts]:
    yield whole
    phases = list(_phases(own, marks))
    yield from phases
    for record in steps:
        yield from _step_spans(own, record, phases)


def _phases(own: TraceParent, marks: list[MarkedMoment]) -> Iterator[SpanFacts]:
    """What the time between the moments went to."""
    admitted: Data | None = None
    for before, mark in pairwise(marks):
        what, data = SPANS.get(("worker", mark.name), mark.name), mark.data
        if mark.name == "computing":
            what = AGAIN if admitted is not None and not data.get("choice") else what
            admitted = admitted or data
            data = {}
        elif mark.name == "last token":
            data = computed_between(admitted or {}, data)
        shown: dict[str, Attribute] = {f"ryz.{name}": value for name, value in data.items()}
        yield SpanFacts(what, own.trace_id, own.span_id, before.at_ns, mark.at_ns, shown)


def _step_spans(own: TraceParent, record: StepRecord, phases: list[SpanFacts]) -> Iterator[SpanFacts]:
    """One step, below the phase in which it was submitted, and what each rank did for it."""
    step = record.step
    above = next((one for one in phases if one.begin_ns <= step.submitted_ns < one.end_ns), None)
    attributes: dict[str, Attribute] = {
        "ryz.step": step.step_id,
        "ryz.sequences": step.sequences,
        "ryz.decode_tokens": step.decode_tokens,
        "ryz.prefill_tokens": step.prefill_tokens,
    }
    parent_id = own.span_id if above is None else above.span_id
    span = SpanFacts("step", own.trace_id, parent_id, step.planned_ns, step.result_ns, attributes)
    yield span
    for rank in record.ranks:
        parts: dict[str, Attribute] = {
            name: spent_ns / 1e6 for name, spent_ns in zip(_PART_NAMES, rank.parts, strict=True)
        }
        parts["ryz.rank"] = rank.rank
        yield SpanFacts(f"rank {rank.rank}", own.trace_id, span.span_id, rank.begin_ns, rank.end_ns, parts)
