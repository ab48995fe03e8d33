"""Carries out what an `Assembly` wants done: publishes, asks for frames again, tells groups to stop."""

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
from shared.messages import Cancel, Resend, ResendReply
from shared.messages.base import MAX_ATTEMPT

MAX_REASON = 500  # characters of a cancel's; a longer `Cancel` might be refused
log = structlog.get_logger(__name__)


class Errands:
    """Of one client; `inbox` is where the broker says that nobody listens."""

    def __init__(
        self, bus: Bus, settings: ClientSettings, inbox: str, caller: subjects.Caller | None = None
    ) -> None:
        self._bus = bus
        self._settings = settings
        self._inbox = inbox
        self._caller = caller
        self._loop = asyncio.get_running_loop()

    async def publish(self, stream: GenerationStream, data: bytes) -> None:
        """Publishes a request, with the time that it has left; raises what `Bus.publish` raises."""
        left_ms = max(1, int((stream.deadline - self._loop.time()) * 1000))
        await self._bus.publish(
            subjects.generate(stream.request.model, self._caller),
            data,
            reply=f"{self._inbox}.{stream.request_id}",
            headers={**stream.headers, subjects.HEADER_TIMEOUT: str(left_ms)},
        )

    async def carry_out(self, stream: GenerationStream, command: Command) -> Commands:
        """Does it; returns what is to be done next."""
        if isinstance(command, SendCancel):
            error = stream.assembly.error
            reason = error.message if error is not None and not stream.group else "cancelled"
            await self.tell_cancel(
                stream.request_id,
                command.group,
                reason,
                command.attempt,
                command.instance_id,
                tenant=stream.request.tenant,
            )
        elif isinstance(command, Publish):
            self._tell_attempt(stream, command)
            try:
                await self.publish(stream, self._again(stream, command))
            except Unavailable as error:
                log.debug("not published again", request_id=stream.request_id, error=error.message)
            except RequestTooLarge as error:  # with its tokens so far it does not fit into a message any more
                return stream.assembly.cancel(error.message, reason="too_large_to_resume")
        else:
            return await self._ask_resend(stream, command)
        return NOTHING

    async def _ask_resend(self, stream: GenerationStream, command: AskResend) -> Commands:
        assembly = stream.assembly
        request = Resend(
            request_id=stream.request_id,
            attempt=assembly.attempt,
            from_seq=command.from_seq,
            instance_id=command.instance_id,
            tenant=stream.request.tenant,
        )
        try:
            answer = await self._bus.request(
                subjects.resend(command.group, self._caller),
                encode(request),
                timeout_s=self._settings.resend_timeout_s,
            )
            reply = decode(answer.data, ResendReply)
        except (Unavailable, InvalidRequest) as error:
            if assembly.attempt != request.attempt:
                return NOTHING
            now = self._loop.time()
            blamed = isinstance(error, NoResponders | RequestTimedOut | InvalidRequest)
            if blamed and now - self._bus.restored_at >= self._settings.reconnect_grace_s:
                commands = assembly.on_resend_failed(error.message, now)
            else:
                assembly.on_resend_excused(now)
                commands = NOTHING
        else:
            if assembly.attempt != request.attempt:  # another group has it by now
                return NOTHING
            commands = assembly.on_resend(reply, self._loop.time())
        return commands

    @staticmethod
    def _tell_attempt(stream: GenerationStream, command: Publish) -> None:
        """Logs what is offered after a loss: which request, and where it is to go on; that it has to wait."""
        attempts = stream.assembly.attempts
        if not attempts.interruptions or command.attempt != attempts.number:
            return
        lost, resume = attempts.interruptions[-1], command.resume
        if not attempts.refusals:
            log.info("request offered to another group", request_id=stream.request_id,
                     attempt=command.attempt, from_seq=resume.next_seq if resume else 0,
                     lost_group=lost.group, reason=lost.reason)  # fmt: skip
        elif attempts.refusals == 1:
            log.info("request waits for a group", request_id=stream.request_id, attempt=command.attempt,
                     lost_group=lost.group, why=attempts.refusal)  # fmt: skip

    @staticmethod
    def tell_accepted(stream: GenerationStream, now: float) -> None:
        """Logs that a group has taken the request just now, if it is not the first."""
        attempts = stream.assembly.attempts
        lost = attempts.interruptions[-1] if attempts.interruptions else None
        if lost is not None and lost.accepted_at == now:
            log.info("request goes on", request_id=stream.request_id, attempt=attempts.number,
                     group=stream.assembly.group, lost_group=lost.group,
                     waited_s=round(now - lost.lost_at, 3))  # fmt: skip

    @staticmethod
    def _again(stream: GenerationStream, command: Publish) -> bytes:
        """The request as that attempt."""
        if command.attempt == stream.request.attempt:
            return stream.data
        later = msgspec.structs.replace(
            stream.request, attempt=command.attempt, resume=command.resume, crashes=command.crashes
        )
        return encode(later)

    async def tell_cancel(
        self,
        request_id: str,
        group: str,
        reason: str,
        attempt: int = MAX_ATTEMPT,
        instance_id: str = "",
        *,
        tenant: str = "",
    ) -> None:
        """Tells a group's leader, or all leaders when `group` is empty, that the answer is not wanted.

        tenant: whose request it is; empty: not known here.
        """
        subject = subjects.cancel(group, self._caller) if group else subjects.cancel_all(self._caller)
        cancel = Cancel(
            request_id=request_id,
            reason=reason[:MAX_REASON],
            attempt=attempt,
            instance_id=instance_id,
            tenant=tenant,
        )
        try:
            await self._bus.publish(subject, encode(cancel))
        except RyzError as error:  # without a broker nobody can be told; the deadline ends it there
            log.debug("not cancelled", request_id=request_id, error=error.message)
