"""Runs a gateway with other constants: `python -m tests.kits.gateway.gateway_main JSON`."""

import json
import sys

from services.gateway.__main__ import main
from services.gateway.settings import GatewaySettings
from tests.kits.constants import changed_constants

if __name__ == "__main__":
    given = json.loads(sys.argv[1])
    GatewaySettings.constants = changed_constants(GatewaySettings.constants, given.keys(), given)
    main()
