"""Sessions of tenants as all transports use them: who may ask, and what takes more than one call.

The calls to the services are in `shared/client/calls/session_admin.py`, the format of session files is in
`sessions/exported_file.py`.
"""

import re
import time
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from services.gateway.admission.identity.identity import Identity, check_scopes
from services.gateway.admission.request_headers import RawHeaders
from services.gateway.answering.context import GatewayContext
from services.gateway.answering.intake.model_names import alias_named
from services.gateway.formats.chat.translation import messages_of
from services.gateway.resources.sessions import exported_file
from services.gateway.resources.sessions.file_thread import FileThread
from services.gateway.resources.sessions.schema import NewSession, SessionObject, session_object
from services.gateway.served_models import KnownModels
from shared.client.calls.model_list import no_model_ready, not_served, usable_names
from shared.client.calls.session_admin import SessionAdmin
from shared.errors import InvalidRequest, RyzError
from shared.identity import new_session_id, root_hash
from shared.messages import ModelList, SessionRecord
from shared.messages.base import NAME_PATTERN, NAME_RULE

PREFIX = "/v1/sessions"


@dataclass(frozen=True, slots=True)
class SessionsCaller:
    """Who asks, and the party that the call counts for."""

    identity: Identity
    party: str

    @property
    def tenant(self) -> str:
        """The tenant."""
        return self.identity.tenant


class TenantSessions:
    """The sessions.

    Args:
        context: What all requests share.
        admin: Calls the services.
        list_models: The models on offer; raises an error of the family if no router answers.
        files: Makes and reads session files.
        root_key: The secret behind new session ids; see `root_key.py`.
    """

    def __init__(
        self,
        context: GatewayContext,
        admin: SessionAdmin,
        known_models: KnownModels,
        files: FileThread,
        root_key: bytes,
    ) -> None:
        self.admin = admin
        self._context = context
        self._known_models = known_models
        self._files = files
        self._root_key = root_key

    def admit(self, headers: RawHeaders, client: Sequence[object] | None, method: str) -> SessionsCaller:
        """Finds who makes a call, and checks whether it may be made now.

        Args:
            headers: Of the call.
            client: Address and port of the caller.
            method: Of HTTP.

        Raises:
            RyzError: It may not.
            HttpRefusal: Its key is not valid, or not for this call.
        """
        admission = self._context.admission
        admission.check_accepting()
        identity = admission.identities.of_headers(headers, PREFIX, client)
        check_scopes(identity, PREFIX, method)
        if not admission.limits.count_call(identity.tenant, identity.key_id):
            admission.rates.take_units(identity.tenant, time.monotonic())
        party = admission.parties.party_of(identity.tenant, client)
        admission.slots.check_units(party)
        return SessionsCaller(identity, party)

    async def delete(self, asker: SessionsCaller, session_id: str) -> None:
        """Deletes a session in one place of the gateway; raises `SessionNotFound` if it is not there."""
        check_session_id(session_id)
        positions = self._context.admission.slots
        positions.take_units(asker.party)
        try:
            await self.admin.delete(asker.tenant, session_id)
        finally:
            positions.free_units(asker.party)

    async def create(self, asker: SessionsCaller, body: NewSession) -> SessionObject:
        """Creates a session; raises `Conflict` if it exists."""
        tenant, model = asker.tenant, await self._model_of(asker.identity, body)
        messages, now_ms = messages_of(body.messages), now_in_ms()
        system = next((one.content for one in messages if one.role == "system"), "")
        first = next((one.content for one in messages if one.role == "user"), "")
        record = SessionRecord(
            session_id=body.session_id or new_session_id(root_hash(tenant, system, first, self._root_key)),
            tenant=tenant,
            model=model,
            version=1,
            messages=messages,
            created_ms=now_ms,
            updated_ms=now_ms,
        )
        summary = await self.admin.create(record, pinned_group=body.pinned_group or "")
        return session_object(summary, now_ms)

    async def _model_of(self, identity: Identity, body: NewSession) -> str:
        asked, tenant = body.model, identity.tenant
        name = asked if asked is None else await self._context.aliases.real_name(asked)
        known = await self._known_of(identity)
        try:
            if name is not None and (base := await self._context.aliases.base_of(name)) != name:
                chosen_model(base, known)
                return name
            return chosen_model(name, known)
        except RyzError as error:
            raise alias_named(error, asked or "", name or "", tenant) from None

    async def _known_of(self, identity: Identity) -> ModelList:
        """The models on offer that a caller may use, its adapters' bases among them."""
        known = await self._known_models(identity.tenant)
        scope = self._context.usable_models.scope_of(identity)
        if scope is None:
            return known
        return msgspec.structs.replace(
            known,
            models=[card for card in known.models if scope.allows(card.name, card.name)],
            away=[name for name in known.away if scope.allows(name, name)],
            offered=[state for state in known.offered if scope.allows(state.card.name, state.card.name)],
        )

    async def export(self, tenant: str, session_id: str) -> tuple[str, bytes]:
        """The name of a session's file, and its bytes."""
        record = await self.admin.record(tenant, session_id)
        cards = {card.name: card for card in (await self._known_models(tenant)).models}
        card = cards.get(record.model)
        fingerprint, now_ms = card.fingerprint if card else "", now_in_ms()
        raw = await self._files.run_queued(
            record.tenant, lambda: exported_file.dump_session(record, fingerprint, now_ms)
        )
        name = re.sub(r"[^A-Za-z0-9_-]+", "_", record.session_id)[:100] or "_"
        return f"{name}.session.json", raw

    async def import_file(
        self, asker: SessionsCaller, raw: bytes, session_id: str | None, *, replace: bool
    ) -> SessionObject:
        """Creates a session from an exported file.

        Args:
            asker: Whose it becomes.
            raw: The file.
            session_id: Its id; None: that in the file.
            replace: Also over a session that is there.

        Raises:
            RyzError: The file is cut or altered, its weights are not served, or the session exists.
        """
        settings, tenant = self._context.settings, asker.tenant
        values = exported_file.max_values(settings.session_max_bytes, settings.constants.max_body_values)
        content = await self._files.run_queued(tenant, lambda: exported_file.read_session(raw, values))
        card = exported_file.served_by(content, await self._known_of(asker.identity))
        now_ms = now_in_ms()
        record = exported_file.imported_record(
            content, tenant, session_id or content.session_id, card, now_ms
        )
        store = self.admin.replace if replace else self.admin.create
        return session_object(await store(record), now_ms)


def check_session_id(session_id: str) -> None:
    """Raises `InvalidRequest` for a text that cannot be the id of a session."""
    if not re.match(NAME_PATTERN, session_id):
        raise InvalidRequest(f"the session id in the path needs {NAME_RULE}; URL-encoded", param="session_id")


def chosen_model(model: str | None, known: ModelList) -> str:
    """The model of a new session; raises an error that names those which are served, or says it is away."""
    names = usable_names(known)
    if model is None:
        if not names:
            raise no_model_ready()
        if len(names) == 1:
            return names[0]
        served = ", ".join(map(repr, names))
        raise InvalidRequest(f"`model` is required: the models served are {served}", param="model")
    if model not in names:
        raise not_served(model, known)
    return model


def now_in_ms() -> int:
    """Unix time in milliseconds."""
    return time.time_ns() // 1_000_000
