"""The chat page's list of models shows which are asleep or load, and follows as that changes."""

import pytest

from tests.kits.gateway.gateway import running_gateway
from tests.kits.model_host import ModelHost, state_of
from tests.kits.pages.chromium import BROWSER, chromium, open_page

pytestmark = pytest.mark.skipif(not BROWSER, reason="there is no Chromium; on Debian: apt install chromium")
NAMES = "[...document.querySelectorAll('#model option')].map((one) => one.textContent).join()"


async def test_the_list_of_models_shows_their_states() -> None:
    async with running_gateway() as gateway, chromium() as browser:
        gateway.fleet.offered[:] = [state_of("demo", "ready"), state_of("second", "asleep")]
        host = await ModelHost(gateway.fleet.bus, gateway.fleet.offered).start()
        async with open_page(browser, gateway.url + "/") as opened:
            await opened.until(f"{NAMES} === 'demo,a/b,second (asleep)'")
            assert await opened.page.inner_text("#model-state") == "ready"
            await opened.page.select_option("#model", "second")
            assert await opened.page.inner_text("#model-state") == "asleep: a message wakes it"
            host.set_phase("second", "loading")
            await opened.until(f"{NAMES} === 'demo,a/b,second (loading)'")
            assert await opened.page.input_value("#model") == "second"
            await opened.page.wait_for_selector("#model-state[data-phase=loading]")
            host.set_phase("second", "ready")
            gateway.fleet.cards.append(state_of("second", "ready").card)
            await opened.until(f"{NAMES} === 'demo,a/b,second'")
            gateway.fleet.cards.pop()
            gateway.fleet.offered.pop()
            await opened.until(f"{NAMES} === 'demo,a/b,second (away)'")
            assert await opened.page.inner_text("#model-state") == "no group serves it now"
            assert not opened.wrong
