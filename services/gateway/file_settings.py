"""The settings of files and batches."""

from typing import Annotated, Literal

from annotated_types import Interval
from pydantic import BaseModel

from shared.setting_types import From1MiB, SecondToTenYears, Share, UpToMillion, UpToTenThousand


class FileSettings(BaseModel, use_attribute_docstrings=True):
    """Where files are, how many a tenant may have, and how much of a batch is done at a time."""

    files_store: Literal["directory", "nats"] = "directory"
    """Where files are: in `RYZ_FILES_DIR`, which gateways on several hosts must share, or in the object store
    of the broker's JetStream."""
    files_dir: str = ".ryz/files"
    """The directory of files; it is made when the first one comes."""
    file_max_bytes: From1MiB = 200 * 2**20
    """Largest file."""
    files_max_per_tenant: UpToMillion = 1000
    """Files of one tenant, results of batches included."""
    files_bytes_per_tenant: From1MiB = 10 * 2**30
    """Bytes of a tenant's files together."""
    batch_ttl_s: SecondToTenYears = 30 * 86_400.0
    """How long a batch is kept after its end; its files stay."""
    batch_share: Share = 0.5
    """Share of the groups' running places that batches may take, while no interactive request waits."""
    batch_max_running: UpToTenThousand = 64
    """Requests of batches that this gateway runs at a time; with `RYZ_BATCH_SHARE` the lower one holds."""
    batch_lease_s: Annotated[float, Interval(ge=1, le=600)] = 10.0
    """How long after the last sign of life of a gateway others take over its batches and their requests."""
