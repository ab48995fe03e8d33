"""`ryz tenants price`: what tokens of a model cost, for limits in money and for sums of usage."""

from typing import Annotated

import typer

from cli.command_groups import BrokerOptions
from cli.command_options import with_options

Amount = float | None
_AMOUNT = {"min": 0, "show_default": False}


@with_options
def price(
    model: Annotated[str, typer.Argument(help="A model; none: list the prices.", show_default=False)] = "",
    *,
    prompt: Annotated[Amount, typer.Option(help="Of a million prompt tokens.", **_AMOUNT)] = None,
    cached: Annotated[Amount, typer.Option(help="Of cached ones; else as the prompt.", **_AMOUNT)] = None,
    completion: Annotated[Amount, typer.Option(help="Of a million generated tokens.", **_AMOUNT)] = None,
    currency: Annotated[str, typer.Option(help="The word beside all prices.", show_default=False)] = "",
    remove: Annotated[bool, typer.Option("--remove", help="The model has no price any more.")] = False,
    common: BrokerOptions,
) -> None:
    """Set the price of a model, or list the prices. An adapter without one has that of its base.

    Examples:
        ryz tenants price smollm2-135m --prompt 0.15 --completion 0.60 --currency EUR
        ryz tenants price
    """
    from cli.console import fail  # noqa: PLC0415 (keeps `ryz --help` quick)
    from cli.tenants.work import change_price, show_prices  # noqa: PLC0415

    amounts = {"prompt": prompt, "cached": cached, "completion": completion}
    given = {name: amount for name, amount in amounts.items() if amount is not None}
    if not model and (given or remove):
        fail("Name the model whose price it is.", 2)
    if remove and given:
        fail("`--remove` takes no amounts.", 2)
    if model and (given or remove):
        change_price(model, given, currency, common, remove=remove)
    else:
        show_prices(model, currency, common)
