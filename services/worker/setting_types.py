"""Types of the worker's settings that a models file has as well; it does not import all settings for them."""

from typing import Annotated

from pydantic import Field

TENANT = r"[A-Za-z0-9_-]{1,64}"
TenantName = Annotated[str, Field(pattern=rf"^{TENANT}$")]
ToolFormatName = Annotated[str, Field(pattern=r"^[a-z0-9_]{0,64}$")]
