"""What commands and HTTP bodies change of a record: days that are kept, limits of bus users."""

from typing import Any

import pytest
from pydantic import ValidationError

from cli.console import CommandError
from cli.keys.bus_user_options import BusUserOptions
from cli.tenants import view
from cli.tenants.tenant_options import TenantOptions
from services.gateway.transports.http.routes.account_bodies import KeyBody, TenantBody
from shared.accounts.forms import tenant_form
from shared.messages import BusUserTerms, KeyRecord, TenantRecord

DAYS = {
    "session_days": 30,
    "response_days": 20,
    "file_days": 10,
    "batch_days": 5,
    "usage_days": 60,
    "record_days": 7,
}
ACME = TenantRecord(tenant="acme", note="the first")
TERMS = BusUserTerms(user="billing", password_hash="$2a$05$" + "a" * 53, max_rps=2.0, max_priority=-1)
USER = KeyRecord(key_id="4f7a0m2k9d1c", tenant="acme", digest=bytes(32), bus_user=TERMS)


@pytest.mark.parametrize("name", DAYS)
def test_each_kind_of_days_is_set_alone_by_command_and_body(name: str) -> None:
    given: dict[str, Any] = {name: DAYS[name]}
    by_command = TenantOptions(**given).applied_to(ACME)
    by_body = TenantBody(**given).applied_to(ACME)
    assert by_command == by_body
    assert {one: getattr(by_body, one) for one in DAYS} == dict.fromkeys(DAYS, 0) | given
    zero: dict[str, Any] = {name: 0}
    assert TenantOptions(**zero).applied_to(by_command) == TenantBody(**zero).applied_to(by_body) == ACME
    for wrong in (-1, 3651, 1.5, "5"):
        with pytest.raises(ValidationError, match=name):
            TenantBody(**{name: wrong})  # type: ignore[arg-type]


def test_all_days_are_shown() -> None:
    record = TenantBody(**DAYS).applied_to(ACME)  # type: ignore[arg-type]
    assert {name: tenant_form(record)[name] for name in DAYS} == DAYS
    lines = dict(view.tenant_lines(record, []))
    kept = ("sessions", "responses", "files", "batches", "usage", "records of requests")
    found = [lines[f"{what} kept"] for what in kept]
    assert found == [f"{days} days" for days in DAYS.values()]


def terms_of(record: KeyRecord) -> tuple[float | None, int | None]:
    assert record.bus_user is not None
    return record.bus_user.max_rps, record.bus_user.max_priority


def test_limits_of_a_bus_user_are_set_and_given_back_to_the_router() -> None:
    changed = BusUserOptions(max_rps="0.5", max_priority="-3").applied_to(USER)
    assert terms_of(changed) == (0.5, -3)
    assert terms_of(BusUserOptions(max_rps="default").applied_to(changed)) == (None, -3)
    assert terms_of(BusUserOptions(max_priority="default").applied_to(changed)) == (0.5, None)
    assert BusUserOptions().applied_to(changed) == changed
    both = KeyBody.model_validate({"bus_user": {"max_rps": "default", "max_priority": "default"}})
    assert terms_of(both.applied_to(changed)) == (None, None)
    kept = KeyBody.model_validate({"bus_user": {"max_rps": None, "max_priority": 4}})
    assert terms_of(kept.applied_to(changed)) == (0.5, 4)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"max_rps": "-1"}, "--max-rps -1"),
        ({"max_rps": "nan"}, "a number from 0 to 1e\\+06"),
        ({"max_rps": "fast"}, "or `default`"),
        ({"max_priority": "1.5"}, "a whole number from -10 to 10"),
        ({"max_priority": "11"}, "--max-priority 11"),
    ],
)
def test_wrong_limits_of_a_bus_user_are_refused(given: dict[str, str], said: str) -> None:
    with pytest.raises(CommandError, match=said) as refused:
        BusUserOptions(**given).applied_to(USER)  # type: ignore[arg-type]
    assert refused.value.exit_code == 2
    with pytest.raises(ValidationError):
        KeyBody.model_validate({"bus_user": {"max_rps": "fast"}})
