"""The torch side of a group: what one rank process runs. Start reading at `rank.py`, then `model.py`."""
