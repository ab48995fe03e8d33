"""Says of a model that could not be loaded that its files are gone, which its leader says less plainly."""

from cli.stack.fleet.entry import FoundModel


def lost_files(model: FoundModel) -> str:
    """Return which of a model's files or directories is gone, as a sentence; empty: all are there."""
    for path in (model.path, model.draft):
        if path is not None and not path.exists():
            return f"{path} is gone; put it back, and `ryz models load {model.name}` tries again at once"
    return ""
