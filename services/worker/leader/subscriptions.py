"""The subjects of a leader, and which call answers each."""

from typing import NamedTuple

from services.worker.leader.adapters.calls import MAX_INSPECTED, MAX_INSPECTIONS, AdapterInspectionCall
from services.worker.leader.bad_messages import BadMessages
from services.worker.leader.calls.attach_calls import AttachCalls, check_reply_to
from services.worker.leader.calls.holders_calls import MAX_ASKED, HoldersCalls, check_token_ids
from services.worker.leader.calls.request_calls import RequestCalls
from services.worker.leader.calls.session_calls import MAX_WARMING, MAX_WARMS, LeaderSessionCalls
from services.worker.leader.calls.token_calls import MAX_AT_ONCE, MAX_WAITING, TokenCalls
from services.worker.leader.context import LeaderContext
from services.worker.leader.fleet.drain import DrainCalls
from services.worker.leader.fleet.fence import Fence
from services.worker.leader.intake.intake import Intake
from services.worker.leader.kv_events.publisher import MAX_ASKED as MAX_FOLLOWS
from services.worker.leader.kv_events.publisher import KVEventCalls
from services.worker.leader.kv_room import KVLimitCalls
from services.worker.leader.profiling.profile_calls import ProfileCalls
from services.worker.leader.sessions.delivery_tracker import DeliveryTracker
from shared import subjects
from shared.bus.api import Bus, Subscription
from shared.bus.endpoint import Endpoint
from shared.messages import (
    Attach,
    Cancel,
    Delivered,
    DetokenizeQuery,
    DrainGroup,
    GroupDown,
    HoldersQuery,
    InspectAdapter,
    KVFollow,
    KVReplay,
    KVSnapshotQuery,
    LimitKV,
    ProfileQuery,
    Resend,
    SessionGet,
    SessionGone,
    TokenizeQuery,
    WarmSession,
)


class LeaderCalls(NamedTuple):
    """The parts that answer messages."""

    intake: Intake
    requests: RequestCalls
    attach: AttachCalls
    sessions: LeaderSessionCalls
    holders: HoldersCalls
    drain: DrainCalls
    kv_limit: KVLimitCalls
    kv_events: KVEventCalls
    fence: Fence
    deliveries: DeliveryTracker
    tokens: TokenCalls
    profiles: ProfileCalls
    adapters: AdapterInspectionCall


class Subscriptions:
    """Subscribes a leader to its subjects.

    Args:
        context: Of the leader; its bus carries the calls of services, and all answers.
        endpoint: Decodes calls and answers them.
        bad_messages: Counts messages that cannot be used.
        outside: Connection for the calls of services outside.
        outside_calls_s: Calls of services outside that are read in a second.
    """

    def __init__(
        self,
        context: LeaderContext,
        endpoint: Endpoint,
        bad_messages: BadMessages,
        calls: LeaderCalls,
        outside: Bus,
        *,
        outside_calls_s: int,
    ) -> None:
        self._context = context
        self._endpoint = endpoint
        self._bad_messages = bad_messages
        self._calls = calls
        self._outside = outside
        self._outside_calls_s = outside_calls_s
        self._subscriptions: list[Subscription] = []

    def __len__(self) -> int:
        return len(self._subscriptions)

    async def subscribe_all(self) -> None:
        """Subscribes to everything."""
        group, bus, calls = self._context.group, self._context.bus, self._calls
        handler, own_inbox = self._endpoint.handler, self._bad_messages.without_foreign_inboxes
        cancel = own_inbox(handler(Cancel, calls.requests.cancel_request))
        resend = own_inbox(handler(Resend, calls.requests.resend_frames))
        down = Endpoint(bus, calls.fence.report_bad).handler(
            GroupDown, calls.fence.end_requests, answers_bad=False
        )
        for subject, handle in (
            (subjects.work(group), calls.intake.on_work),
            (subjects.cancel(group), cancel),
            (subjects.CANCEL_ALL, cancel),
            (subjects.resend(group), resend),
            (subjects.ATTACH, handler(Attach, calls.attach.attach, check=check_reply_to)),
            (subjects.delivered(group), handler(Delivered, calls.deliveries.confirm_delivery)),
            (subjects.peer(group), handler(SessionGet, calls.sessions.find_record)),
            (subjects.SESSION_GONE, handler(SessionGone, calls.sessions.forget_session)),
            (subjects.drain(group), handler(DrainGroup, calls.drain.drain_group)),
            (subjects.limit_kv(group), handler(LimitKV, calls.kv_limit.limit_kv)),
            (subjects.PROFILE, handler(ProfileQuery, calls.profiles.profile, answers_bad=False)),
            (subjects.GROUP_DOWN, down),
        ):
            self._subscriptions.append(await bus.subscribe(subject, handle))
        for subject, handle in (
            (subjects.cancel(group, subjects.ANY_CALLER), cancel),
            (subjects.cancel_all(subjects.ANY_CALLER), cancel),
            (subjects.resend(group, subjects.ANY_CALLER), resend),
        ):
            self._subscriptions.append(
                await self._outside.subscribe(subject, handle, max_per_s=self._outside_calls_s)
            )
        find_cached = handler(HoldersQuery, calls.holders.find_cached, check=check_token_ids)
        self._subscriptions.append(
            await bus.subscribe(subjects.KV_HOLDERS, find_cached, max_pending=MAX_ASKED)
        )
        events = calls.kv_events
        for subject, handle in (
            (subjects.KV_FOLLOW, handler(KVFollow, events.follow)),
            (subjects.kv_replay(group), handler(KVReplay, events.replay)),
            (subjects.kv_snapshot(group), handler(KVSnapshotQuery, events.snapshot)),
        ):
            self._subscriptions.append(await bus.subscribe(subject, handle, max_pending=MAX_FOLLOWS))
        self._subscriptions.append(
            await bus.subscribe(
                subjects.warm(group),
                handler(WarmSession, calls.sessions.warm_session),
                max_concurrent=MAX_WARMING,
                max_pending=MAX_WARMS,
            )
        )

        if calls.adapters.is_reader:
            await self._subscribe_inspections()
        await self._subscribe_tokens()

    async def _subscribe_inspections(self) -> None:
        """Subscribes to inspections of adapters, of which each goes to one leader of the model."""
        adapters = self._calls.adapters
        self._subscriptions.append(
            await self._context.bus.subscribe(
                subjects.inspect_adapter(self._context.model),
                self._endpoint.handler(InspectAdapter, adapters.inspect_adapter, check=adapters.check_model),
                queue=subjects.TOKENIZE_QUEUE,
                max_concurrent=MAX_INSPECTED,
                max_pending=MAX_INSPECTIONS,
            )
        )

    async def _subscribe_tokens(self) -> None:
        """Subscribes to questions about tokens, of which each goes to one leader of the model."""
        model, tokens = self._context.model, self._calls.tokens
        handler, own_inbox = self._endpoint.handler, self._bad_messages.without_foreign_inboxes
        for subject_of, handle in (
            (subjects.tokenize, handler(TokenizeQuery, tokens.tokenize, check=tokens.check_model)),
            (subjects.detokenize, handler(DetokenizeQuery, tokens.detokenize, check=tokens.check_model)),
        ):
            queue = subjects.TOKENIZE_QUEUE
            self._subscriptions += [
                await self._context.bus.subscribe(
                    subject_of(model),
                    handle,
                    queue=queue,
                    max_concurrent=MAX_AT_ONCE,
                    max_pending=MAX_WAITING,
                ),
                await self._outside.subscribe(
                    subject_of(model, subjects.ANY_CALLER),
                    own_inbox(handle),
                    queue=queue,
                    max_concurrent=MAX_AT_ONCE,
                    max_pending=MAX_WAITING,
                    max_per_s=self._outside_calls_s,
                ),
            ]

    async def unsubscribe_all(self) -> None:
        """Ends all subscriptions, and a profile that is recorded."""
        await self._calls.profiles.stop()
        for subscription in self._subscriptions:
            await subscription.unsubscribe()
