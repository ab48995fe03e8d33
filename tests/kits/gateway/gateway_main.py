"""Runs a gateway with other constants than its own or those of its client: `gateway_main JSON`."""

import json
import sys
from dataclasses import fields, replace

from services.gateway import __main__ as gateway
from services.gateway.settings import GatewaySettings
from shared.client.constants import ClientConstants
from shared.client.settings import ClientSettings
from tests.kits.constants import changed_constants


def main() -> None:
    """Change the constants, and run the gateway."""
    given = json.loads(sys.argv[1])
    clients = {field.name for field in fields(ClientConstants)} & given.keys()
    ClientSettings.constants = replace(ClientSettings.constants, **{name: given[name] for name in clients})
    GatewaySettings.constants = changed_constants(GatewaySettings.constants, given.keys() - clients, given)
    gateway.main()


if __name__ == "__main__":
    main()
