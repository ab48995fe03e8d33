"""Reads the Lua scripts that are installed beside the modules that use them."""

from importlib import resources


def read_lua(package: str, name: str) -> str:
    """Returns the text of `lua/<name>.lua` in a package."""
    return (resources.files(package) / "lua" / f"{name}.lua").read_text(encoding="utf-8")
