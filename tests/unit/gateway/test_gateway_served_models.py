"""What is said of a model while no group is ready: it may be loading, so it is not unknown."""

import pytest

from services.gateway.answering.intake.model_aliases import no_aliases
from services.gateway.resources.sessions.exported_file import SessionFile, served_by
from services.gateway.resources.sessions.tenants import chosen_model
from services.gateway.served_models import ServedModels
from shared.errors import InvalidRequest, ModelNotFound, RyzError, Unavailable
from shared.messages import ModelCard

CARD = ModelCard(name="demo", context_length=128)


def check_loading(error: RyzError) -> None:
    """It says that the caller has to come back."""
    assert isinstance(error, Unavailable)
    assert (error.data["reason"], error.retry_after_s) == ("no_group", 1.0)


@pytest.mark.asyncio
async def test_a_model_that_is_asked_for() -> None:
    cards: list[ModelCard] = []

    async def list_all() -> list[ModelCard]:
        return cards

    served = ServedModels(list_all, no_aliases())
    with pytest.raises(Unavailable) as loading:
        await served.find("demo")
    check_loading(loading.value)
    cards.append(CARD)
    assert await served.find("demo") == CARD
    with pytest.raises(ModelNotFound):
        await served.find("other")


@pytest.mark.parametrize("model", [None, "demo"])
def test_the_model_of_a_new_session(model: str | None) -> None:
    with pytest.raises(Unavailable) as loading:
        chosen_model(model, [])
    check_loading(loading.value)
    assert chosen_model(model, [CARD]) == "demo"
    with pytest.raises(ModelNotFound):
        chosen_model("other", [CARD])
    with pytest.raises(InvalidRequest):
        chosen_model(None, [CARD, ModelCard(name="other", context_length=128)])


def test_the_model_of_a_session_that_comes_from_elsewhere() -> None:
    content = SessionFile(session_id="s", model="demo", model_fingerprint="", messages=[])
    with pytest.raises(Unavailable) as loading:
        served_by(content, [])
    check_loading(loading.value)
    assert served_by(content, [CARD]) == CARD
