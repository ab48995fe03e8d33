"""Home Assistant: its OpenAI integration, set up by its form: an action that asks, a conversation."""

import os
import tempfile

from cases import API, MODEL, QUESTION, run_cases

os.environ["OPENAI_BASE_URL"] = API

from homeassistant import bootstrap, config_entries, loader
from homeassistant.auth import auth_manager_from_config
from homeassistant.components import conversation
from homeassistant.core import Context, CoreState, HomeAssistant
from homeassistant.setup import async_setup_component

DOMAIN = "openai_conversation"
OPTIONS = {
    "recommended": False,
    "prompt": "Be short.",
    "chat_model": MODEL,
    "max_tokens": 40,
    "temperature": 0,
}


async def started(folder):
    """A Home Assistant without pages, whose packages are there."""
    home = HomeAssistant(folder)
    home.config.skip_pip = True
    loader.async_setup(home)
    home.config_entries = config_entries.ConfigEntries(home, {})
    await bootstrap.async_load_base_functionality(home)
    home.auth = await auth_manager_from_config(home, [], [])
    for name in ("homeassistant", "conversation"):
        assert await async_setup_component(home, name, {}), name
    home.set_state(CoreState.running)
    return home


async def entry_of(home):
    """The integration as its form in the settings adds it."""
    flow = await home.config_entries.flow.async_init(
        DOMAIN, context={"source": config_entries.SOURCE_USER}, data={"api_key": "none"}
    )
    assert flow["type"] == "create_entry", flow
    entry = flow["result"]
    await home.async_block_till_done()
    home.config_entries.async_update_entry(entry, options=OPTIONS)
    await home.config_entries.async_reload(entry.entry_id)
    await home.async_block_till_done()
    assert entry.state is config_entries.ConfigEntryState.LOADED, entry.state
    return entry


async def with_home(case):
    with tempfile.TemporaryDirectory() as folder:
        home = await started(folder)
        try:
            await case(home, await entry_of(home))
        finally:
            await home.async_stop(force=True)


async def asks():
    async def case(home, entry):
        data = {"config_entry": entry.entry_id, "prompt": QUESTION}
        found = await home.services.async_call(
            DOMAIN, "generate_content", data, blocking=True, return_response=True
        )
        assert found["text"].strip()

    await with_home(case)


async def conversations():
    async def case(home, entry):
        (agent,) = home.states.async_entity_ids(
            "conversation",
        )[-1:]
        told = None
        for text in (QUESTION, "Another one."):
            told = await conversation.async_converse(
                home, text, told and told.conversation_id, Context(), language="en", agent_id=agent
            )
            said = told.response.as_dict()
            assert said["response_type"] == "action_done", said
            assert said["speech"]["plain"]["speech"].strip()

    await with_home(case)


run_cases(asks, conversations)
