"""Prices as commands and routes give them."""

from shared.accounts.forms import with_prices
from shared.messages import PriceRecord


def test_cached_tokens_cost_what_a_prompt_does_until_they_have_a_price() -> None:
    new = with_prices(PriceRecord(model="demo"), {"prompt": 0.5, "completion": 1.5})
    assert (new.prompt, new.cached, new.completion) == (500_000, 500_000, 1_500_000)
    dearer = with_prices(new, {"prompt": 0.6})
    assert (dearer.prompt, dearer.cached, dearer.completion) == (600_000, 600_000, 1_500_000)
    own = with_prices(dearer, {"cached": 0.05})
    assert (own.prompt, own.cached) == (600_000, 50_000)
    assert with_prices(own, {"prompt": 0.7}).cached == 50_000
    free = with_prices(PriceRecord(model="demo"), {"prompt": 0.5, "cached": 0.0})
    assert free.cached == 0
