"""How many rows are computed at a time where a row's result must not depend on how many others there are."""

import torch.nn.functional as F
from torch import Tensor

TILE_ROWS = 16


def padded_rows(rows: Tensor) -> Tensor:
    """Rows [rows, values], with zeros after them up to whole tiles."""
    return F.pad(rows, (0, 0, 0, -len(rows) % TILE_ROWS))
