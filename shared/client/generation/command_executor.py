"""Carries out the commands of a `GenerationState`: publishes, asks for frames again, cancels."""

import asyncio

import msgspec
import structlog

from shared import subjects
from shared.bus import Bus, NoResponders, RequestTimedOut
from shared.client.generation.commands import NOTHING, AskResend, Command, Commands, Publish, SendCancel
from shared.client.generation.generation_stream import GenerationStream
from shared.client.settings import ClientSettings
from shared.codec import decode, encode
from shared.errors import InvalidRequest, RequestTooLarge, RyzError, Unavailable
from shared.messages import Cancel, Delivered, Resend, ResendReply
from shared.telemetry.request_ids import TRACE_PARENT, log_ids
from shared.telemetry.spans.names import OFFERED_AGAIN

MAX_REASON = 500  # characters of a cancel's; a longer `Cancel` might be refused
log = structlog.get_logger(__name__)


class CommandExecutor:
    """The commands of one client's requests."""

    def __init__(
        self, bus: Bus, settings: ClientSettings, inbox: str, caller: subjects.OutsideService | None = None
    ) -> None:
        """Publishes on a bus.

        Args:
            bus: Where the fleet is.
            settings: Time limits.
            inbox: Where the broker says that no router listens, with the request's id appended.
            caller: A caller outside, whose subjects carry its name.
        """
        self._bus = bus
        self._settings = settings
        self._inbox = inbox
        self._caller = caller
        self._loop = asyncio.get_running_loop()

    async def publish_request(
        self, stream: GenerationStream, data: bytes, *, to_all: bool = False, repeats: int = 0
    ) -> None:
        """Publishes a request with the time that it has left; raises what `Bus.publish` raises.

        Args:
            stream: The request's.
            data: The request, encoded.
            to_all: Every router gets it. The broker does not say whether there is one.
            repeats: As in `Publish`.
        """
        attempts = stream.state.attempts
        self._mark_published(stream, repeats)
        left_ms = max(1, int((stream.deadline - self._loop.time()) * 1000))
        headers = {**stream.headers, subjects.HEADER_TIMEOUT: str(left_ms)}
        if stream.trace is not None:
            headers[TRACE_PARENT] = stream.trace.header(attempts.number)
        model, reply = stream.request.model, f"{self._inbox}.{stream.request_id}"
        subject = (subjects.again if to_all else subjects.generate)(model, self._caller)
        try:
            await self._bus.publish(subject, data, reply="" if to_all else reply, headers=headers)
        except RequestTooLarge as error:  # its text names a subject, which callers of gateways do not know
            size, limit = error.data.get("size"), error.data.get("limit")
            raise RequestTooLarge(
                f"the request has {size} bytes for the broker, which takes at most {limit}: shorten the "
                "prompt, its tools or schemas",
                **error.data,
            ) from error

    def _mark_published(self, stream: GenerationStream, repeats: int) -> None:
        """Notes the moment. A request that waits is published many times, which take one moment together."""
        attempts = stream.state.attempts
        details: dict[str, str | int | float] = {"attempt": attempts.number}
        if repeats:
            refusal = attempts.refusal
            reason = str(refusal.data.get("reason", refusal.code)) if refusal is not None else ""
            stream.timeline.mark_again(OFFERED_AGAIN, details | {"asked": repeats + 1, "reason": reason})
            return
        if attempts.interruptions:
            last = attempts.interruptions[-1]
            silent_ms = round((self._loop.time() - last.silent_since) * 1000, 1)
            details |= {"lost": last.group, "reason": last.reason, "silent_ms": silent_ms}
        stream.timeline.mark("published", details)

    async def carry_out(self, stream: GenerationStream, command: Command) -> Commands:
        """Carries a command out; returns the commands that follow from it."""
        if isinstance(command, SendCancel):
            error = stream.error
            reason = error.message if error is not None and not stream.group else "cancelled"
            await self._send_cancel(stream.request_id, command, reason, stream.request.tenant)
        elif isinstance(command, Publish):
            self._log_attempt(stream, command)
            try:
                data = self._encode_attempt(stream, command)
                await self.publish_request(stream, data, to_all=command.to_all, repeats=command.repeats)
            except Unavailable as error:
                log.debug("not published again", **_ids(stream), error=error.message)
            except RequestTooLarge as refusal:  # with its tokens so far it does not fit into a message
                return stream.state.cancel(refusal.message, reason="too_large_to_resume")
        else:
            return await self._ask_resend(stream, command)
        return NOTHING

    async def _ask_resend(self, stream: GenerationStream, command: AskResend) -> Commands:
        state = stream.state
        request = Resend(
            request_id=stream.request_id,
            attempt=state.attempts.number,
            from_seq=command.from_seq,
            instance_id=command.instance_id,
            tenant=stream.request.tenant,
        )
        error: RyzError | None = None
        try:
            answer = await self._bus.request(
                subjects.resend(command.group, self._caller),
                encode(request),
                timeout_s=self._settings.constants.resend_timeout_s,
            )
            reply = decode(answer.data, ResendReply)
        except (Unavailable, InvalidRequest) as caught:
            error = caught
        if state.attempts.number != request.attempt:  # another group has it by now
            return NOTHING
        now = self._loop.time()
        if error is None:
            return state.on_resend(reply, now)
        failed = isinstance(error, NoResponders | RequestTimedOut | InvalidRequest)
        if failed and now - self._bus.restored_at >= self._settings.constants.reconnect_grace_s:
            return state.on_resend_failed(error.message, now, late=isinstance(error, RequestTimedOut))
        state.on_resend_excused(now)
        return NOTHING

    @staticmethod
    def _log_attempt(stream: GenerationStream, command: Publish) -> None:
        """Logs the first publish after a loss, and the first one after a refusal."""
        attempts = stream.state.attempts
        if not attempts.interruptions or command.attempt != attempts.number:
            return
        lost, resume = attempts.interruptions[-1], command.resume
        if not attempts.refusals:
            log.info("request offered to another group", **_ids(stream),
                     attempt=command.attempt, from_seq=resume.next_seq if resume else 0,
                     lost_group=lost.group, reason=lost.reason)  # fmt: skip
        elif attempts.refusals == 1:
            log.info("request waits for a group", **_ids(stream), attempt=command.attempt,
                     lost_group=lost.group, why=attempts.refusal and attempts.refusal.message)  # fmt: skip

    @staticmethod
    def log_accepted(stream: GenerationStream, now: float) -> None:
        """Logs that a group has taken the request at `now`, if one was lost before."""
        attempts = stream.state.attempts
        lost = attempts.interruptions[-1] if attempts.interruptions else None
        if lost is not None and lost.accepted_at == now:
            log.info("request goes on", **_ids(stream), attempt=attempts.number,
                     group=stream.group, lost_group=lost.group,
                     waited_s=round(now - lost.lost_at, 3))  # fmt: skip

    @staticmethod
    def _encode_attempt(stream: GenerationStream, command: Publish) -> bytes:
        if command.attempt == stream.request.attempt:
            return stream.data
        attempts = stream.state.attempts
        later = msgspec.structs.replace(
            stream.request,
            attempt=command.attempt,
            resume=command.resume,
            crashes=command.crashes,
            sampling=attempts.sampling,
            lost_group=attempts.interruptions[-1].group if attempts.interruptions else "",
        )
        return encode(later)

    async def cancel_unknown(self, request_id: str, command: SendCancel) -> None:
        """Cancels a request that this client does not have."""
        await self._send_cancel(request_id, command, "the caller is gone", tenant="")

    async def _send_cancel(self, request_id: str, command: SendCancel, reason: str, tenant: str) -> None:
        cancel = Cancel(
            request_id=request_id,
            reason=reason[:MAX_REASON],
            attempt=command.attempt,
            instance_id=command.instance_id,
            tenant=tenant,
        )
        subject = subjects.cancel_all(self._caller)
        if command.group:
            subject = subjects.cancel(command.group, self._caller)
        try:
            await self._bus.publish(subject, encode(cancel))
        except RyzError as error:  # without a broker the deadline ends the request
            log.debug("not cancelled", request_id=request_id, error=error.message)

    async def confirm_delivery(self, stream: GenerationStream) -> None:
        """Confirms to the group's leader that the caller of a turn gets the end of its answer."""
        session = stream.request.session
        if session is None or not stream.group:
            return
        delivered = Delivered(
            request_id=stream.request_id, tenant=stream.request.tenant, session_id=session.session_id
        )
        try:
            await self._bus.publish(subjects.delivered(stream.group), encode(delivered))
        except RyzError as error:
            log.debug("not told that an answer arrived", **_ids(stream), error=error.message)


def _ids(stream: GenerationStream) -> dict[str, str]:
    """Names the request in a log line: the executor works for all requests of its client."""
    trace = stream.trace  # of the process that began it, where it is recorded
    parent = stream.headers if trace is None else trace.header(stream.state.attempts.number)
    return log_ids(stream.request_id, parent)
