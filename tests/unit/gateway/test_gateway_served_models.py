"""What is said of a model while no group is ready: it may be loading, so it is not unknown."""

import pytest

from services.gateway.admission.identity.identity import ANYONE
from services.gateway.answering.intake.model_names import ModelAliases, UsableModels, no_aliases
from services.gateway.resources.sessions.exported_file import SessionFile, served_by
from services.gateway.resources.sessions.tenants import chosen_model
from services.gateway.served_models import KnownModels, ServedModels
from shared.accounts.register import AccountRegister
from shared.errors import Conflict, InvalidRequest, ModelNotFound, RyzError, Unavailable
from shared.messages import ModelCard, ModelList
from shared.messages.models import Phase
from tests.kits.model_host import state_of

CARD = ModelCard(name="demo", context_length=128)
NONE = ModelList(models=[])
BESIDE = ModelList(models=[CARD], away=["second"])  # which is loading


def served_models(known: KnownModels, aliases: ModelAliases) -> ServedModels:
    """Without limits of keys and tenants."""
    return ServedModels(known, aliases, UsableModels(AccountRegister(), aliases, known))


def check_loading(error: RyzError) -> None:
    """It says that the caller has to come back."""
    assert isinstance(error, Unavailable)
    assert (error.data["reason"], error.retry_after_s) == ("no_group", 1.0)


@pytest.mark.asyncio
async def test_a_model_that_is_asked_for() -> None:
    cards: list[ModelCard] = []

    async def known(_: str) -> ModelList:
        return ModelList(models=cards, away=["second"] if cards else [])

    served = served_models(known, no_aliases())
    with pytest.raises(Unavailable) as loading:
        await served.find("demo", ANYONE)
    check_loading(loading.value)
    cards.append(CARD)
    assert (await served.find("demo", ANYONE)).card == CARD
    with pytest.raises(ModelNotFound):
        await served.find("other", ANYONE)
    with pytest.raises(Unavailable, match="'second' is ready now") as loading:
        await served.find("second", ANYONE)
    check_loading(loading.value)
    assert [one.card for one in await served.list_for(ANYONE)] == [CARD]


@pytest.mark.asyncio
async def test_a_model_has_its_own_aliases() -> None:
    other = ModelCard(name="other", context_length=128)

    async def known(_: str) -> ModelList:
        return ModelList(models=[CARD, other])

    async def names() -> list[str]:
        return ["demo", "other"]

    aliases = ModelAliases({"x-*": "other", "gpt": "demo", "small": "demo"}, names)
    served = served_models(known, aliases)
    assert [one.aliases for one in await served.list_for(ANYONE)] == [["gpt", "small"], ["x-*"]]
    assert (await served.find("x-1", ANYONE)).card == other
    assert (await served.find("small", ANYONE)).card == CARD


@pytest.mark.asyncio
async def test_models_that_hosts_offer_stand_beside_the_ready_ones() -> None:
    offered = [
        state_of("zeta", "asleep", aliases=["z", "gpt"]),
        state_of("demo", "ready", aliases=["d"]),
        state_of("beta", "loading"),
    ]

    async def known(_: str) -> ModelList:
        return ModelList(models=[CARD], offered=offered)

    async def names() -> list[str]:
        return ["demo", "zeta"]

    served = served_models(known, ModelAliases({"gpt": "zeta"}, names))
    listed = await served.list_for(ANYONE)
    assert [(one.card.name, one.ready) for one in listed] == [
        ("demo", True), ("beta", False), ("zeta", False)
    ]  # fmt: skip
    assert [one.aliases for one in listed] == [["d"], [], ["gpt", "z"]]
    assert listed[0].card is CARD  # with its fingerprint
    for name in ("zeta", "z", "gpt"):
        assert (await served.find(name, ANYONE)).card.name == "zeta"
    with pytest.raises(ModelNotFound, match="models that are served: demo, zeta, beta"):
        await served.find("other", ANYONE)


def test_a_session_may_begin_with_a_model_that_is_asleep() -> None:
    known = ModelList(models=[CARD], offered=[state_of("second", "asleep"), state_of("demo", "ready")])
    assert chosen_model("second", known) == "second"
    with pytest.raises(InvalidRequest, match="'demo', 'second'"):
        chosen_model(None, known)
    asleep = ModelList(models=[], offered=[state_of("second", "asleep")])
    assert chosen_model(None, asleep) == "second"


@pytest.mark.parametrize(
    ("phase", "why", "reason"),
    [
        ("asleep", "", "waking"),
        ("loading", "", "waking"),
        ("absent", "", "waking"),
        ("absent", "unload", "model_unloaded"),
        ("absent", "sleep", "waking"),
        ("failed", "no such file", "model_failed"),
    ],
)
def test_a_session_from_elsewhere_needs_the_weights_of_a_ready_model(
    phase: Phase, why: str, reason: str
) -> None:
    content = SessionFile(session_id="s", model="second", model_fingerprint="f", messages=[])
    known = ModelList(models=[CARD], offered=[state_of("second", phase, why=why, load_s=3.5)])
    with pytest.raises(Unavailable) as refused:
        served_by(content, known)
    assert refused.value.data["reason"] == reason
    if reason == "waking":
        assert refused.value.retry_after_s == 3.5
    ready = ModelList(
        models=[CARD, ModelCard(name="second", context_length=9, fingerprint="g")],
        offered=[state_of("second", "ready")],
    )
    with pytest.raises(Conflict):
        served_by(content, ready)


@pytest.mark.parametrize("model", [None, "demo"])
def test_the_model_of_a_new_session(model: str | None) -> None:
    with pytest.raises(Unavailable) as loading:
        chosen_model(model, NONE)
    check_loading(loading.value)
    assert chosen_model(model, BESIDE) == "demo"
    with pytest.raises(Unavailable) as loading:
        chosen_model("second", BESIDE)
    check_loading(loading.value)
    with pytest.raises(ModelNotFound):
        chosen_model("other", BESIDE)
    with pytest.raises(InvalidRequest):
        chosen_model(None, ModelList(models=[CARD, ModelCard(name="other", context_length=128)]))


def test_the_model_of_a_session_that_comes_from_elsewhere() -> None:
    content = SessionFile(session_id="s", model="demo", model_fingerprint="", messages=[])
    with pytest.raises(Unavailable) as loading:
        served_by(content, NONE)
    check_loading(loading.value)
    assert served_by(content, BESIDE) == CARD
    for model in ("second", "other"):
        other = SessionFile(session_id="s", model=model, model_fingerprint="", messages=[])
        with pytest.raises(Unavailable if model == "second" else Conflict):
            served_by(other, BESIDE)
