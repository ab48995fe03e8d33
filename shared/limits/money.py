"""What tokens cost. Pure."""

from shared.messages.tenants.accounts import PriceRecord

PER = 1_000_000  # prices are for so many tokens


def money_of(price: PriceRecord | None, prompt: int, cached: int, completion: int) -> int:
    """Returns the price of a request in millionths of the currency, rounded up.

    Args:
        price: Of the model; None: it has none, and is free.
        prompt: Tokens of the prompt, `cached` among them.
        cached: Those whose KV was not computed again.
        completion: Generated tokens.
    """
    if price is None:
        return 0
    total = (prompt - cached) * price.prompt + cached * price.cached + completion * price.completion
    return -(-total // PER)
