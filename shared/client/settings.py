"""The settings of an `InferenceClient`."""

from collections.abc import Mapping
from typing import Annotated, ClassVar

from annotated_types import Interval
from pydantic_settings import SettingsConfigDict

from shared.client.constants import ClientConstants, constant_settings
from shared.setting_types import ZeroToHour, ZeroToMillion
from shared.settings import RyzSettings


class ClientSettings(RyzSettings):
    """Read from `RYZ_CLIENT_...`; the defaults suit a gateway as well as a batch job."""

    model_config = SettingsConfigDict(env_prefix="RYZ_CLIENT_")
    gone: ClassVar[Mapping[str, object]] = constant_settings()
    constants: ClassVar[ClientConstants] = ClientConstants()

    wait_s: ZeroToHour = 15.0
    """How long a request that no group has begun waits for a broker, a router or a group that is away, before
    it is refused; 0: not at all. Its own time limit may be shorter. A model that a host is to load is waited
    for until that limit."""
    max_waiting: ZeroToMillion = 512
    """Requests that may wait so at the same time, those for models that load included; others are refused at
    once. One tenant and one model may have 7/8 of them, and less where others wait, too."""
    max_losses: Annotated[int, Interval(ge=0, le=100)] = 5
    """Groups that a request may lose in mid-stream, without those that turn out to be alive; 0: none."""
