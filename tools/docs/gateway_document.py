"""The OpenAPI document of the gateway's routes, made without connections: no route is called."""

import inspect
import json
from collections.abc import Sequence
from typing import Any
from unittest.mock import MagicMock, patch

from fastapi import FastAPI
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from services.gateway import app as gateway_app
from services.gateway.settings import GatewaySettings

_REF = "#/components/schemas/{model}"


def gateway_document() -> dict[str, Any]:
    """Return the document that `/openapi.json` serves."""
    found: dict[str, Any] = {}

    def keep(app: FastAPI, bodies: Sequence[type[BaseModel]]) -> None:
        _, schemas = models_json_schema(
            [(body, "validation") for body in bodies], ref_template=_REF, by_alias=True
        )
        found.update(app.openapi())
        found.setdefault("components", {}).setdefault("schemas", {}).update(schemas["$defs"])

    parts: dict[str, Any] = {
        name: MagicMock() for name in inspect.signature(gateway_app.create_app).parameters
    }
    parts["context"].settings = GatewaySettings()
    with patch.object(gateway_app, "add_document", keep):
        gateway_app.create_app(**parts)
    return json.loads(json.dumps(found))  # type: ignore[no-any-return]
