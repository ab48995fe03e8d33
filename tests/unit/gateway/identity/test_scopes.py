"""What keys may be used for."""

import pytest

from services.gateway.admission.errors.refusals import HttpRefusal
from services.gateway.admission.identity.identity import (
    STREAMS,
    Identity,
    ModelScope,
    api_of,
    check_scopes,
    spends_tokens,
)
from shared.accounts.register import AccountRegister
from shared.errors import ModelNotFound
from shared.messages import Scopes, StoredAccount, TenantRecord


@pytest.mark.parametrize(
    ("route", "api"),
    [
        ("/v1/chat/completions", "chat"),
        ("/v1/completions", "completions"),
        ("/v1/responses/{response_id}", "responses"),
        ("/v1/messages/count_tokens", "messages"),
        ("/v1/embeddings", "embeddings"),
        ("/tokenize", "tokens"),
        ("/v1/sessions", "sessions"),
        ("/v1/files", "files"),
        ("/v1/batches/{batch_id}", "batches"),
        ("/v1/models/a/b", "models"),
        ("/v1/streams", ""),
        ("/v1/manage/models", ""),
        ("/cluster/events", ""),
        ("/", ""),
    ],
)
def test_a_route_belongs_to_an_api(route: str, api: str) -> None:
    assert api_of(route) == api


def test_a_key_of_some_apis_is_refused_by_others_with_their_names() -> None:
    identity = Identity("ada", scopes=Scopes(apis=["chat", "embeddings"]))
    check_scopes(identity, "/v1/chat/completions", "POST")
    check_scopes(identity, "/v1/streams", "GET")
    with pytest.raises(HttpRefusal) as refusal:
        check_scopes(identity, "/v1/responses/{response_id}", "GET")
    assert (refusal.value.status, refusal.value.code) == (403, "api_not_allowed")
    assert "'responses'; it may use: chat, embeddings" in refusal.value.message


@pytest.mark.parametrize(
    ("route", "method", "allowed"),
    [
        ("/v1/sessions", "GET", True),
        ("/v1/sessions", "DELETE", False),
        ("/v1/chat/completions", "POST", False),
        ("/v1/messages", "POST", False),
        ("/v1/messages/count_tokens", "POST", True),
        ("/tokenize", "POST", True),
        ("/v1/batches/{batch_id}", "POST", False),
        ("/v1/models", "HEAD", True),
        ("/v1/streams", "GET", False),
        ("/v1/manage/models", "PUT", False),
    ],
)
def test_a_key_that_may_read_changes_nothing(route: str, method: str, allowed: bool) -> None:
    identity = Identity("ada", scopes=Scopes(read_only=True))
    if allowed:
        check_scopes(identity, route, method)
        return
    with pytest.raises(HttpRefusal) as refusal:
        check_scopes(identity, route, method)
    assert (refusal.value.status, refusal.value.code) == (403, "read_only_key")


def scope(key: list[str], tenant: list[str], aliases: dict[str, str] | None = None) -> ModelScope:
    register = AccountRegister()
    record = TenantRecord(tenant="ada", models=tenant)
    register.replace_all([StoredAccount(record=record, revision=1)], 1)
    return ModelScope(Identity("ada", scopes=Scopes(models=key)), register, aliases or {})


def test_a_caller_may_use_what_both_its_key_and_its_tenant_have() -> None:
    assert scope([], []).has_all
    assert scope(["a", "b"], ["b", "c"]).allows("b", "b")
    for model in ("a", "c", "d"):
        assert not scope(["a", "b"], ["b", "c"]).allows(model, model)


def test_a_base_stands_for_its_adapters_and_an_adapter_for_itself() -> None:
    assert scope(["base"], []).allows("base:french", "base")
    only = scope(["base:french"], [])
    assert only.allows("base:french", "base")
    assert not only.allows("base", "base")
    assert not only.allows("base:german", "base")


def test_a_list_may_name_a_model_by_another_name() -> None:
    assert scope(["gpt"], [], {"gpt": "demo"}).allows("demo", "demo")
    assert not scope(["gpt"], []).allows("demo", "demo")


def test_a_forbidden_model_is_told_like_an_unknown_one() -> None:
    found = scope(["a"], [])
    unknown = ModelNotFound("no group serves model 'x'; models that are served: a, b, secret", param="model")
    assert found.hidden(unknown).message == found.refusal("x").message
    assert "secret" not in found.refusal("x").message
    assert found.refusal("x").data == {"param": "model"}
    assert scope([], []).hidden(unknown) is unknown


@pytest.mark.parametrize(
    ("route", "method", "spends"),
    [
        ("/v1/chat/completions", "POST", True),
        ("/v1/completions", "POST", True),
        ("/v1/responses", "POST", True),
        ("/v1/messages", "POST", True),
        ("/v1/embeddings", "POST", True),
        ("/v1/batches", "POST", True),
        ("/v1/batches", "GET", False),
        ("/v1/batches/{batch_id}", "POST", False),
        ("/v1/responses/{response_id}", "POST", False),
        ("/v1/messages/count_tokens", "POST", False),
        ("/tokenize", "POST", False),
        (STREAMS, "DELETE", False),
        ("/v1/files", "POST", False),
    ],
)
def test_which_calls_spend_tokens(route: str, method: str, spends: bool) -> None:
    assert spends_tokens(route, method) == spends
