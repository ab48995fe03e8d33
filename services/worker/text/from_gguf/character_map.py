"""Checks the compiled rules of normalization of a SentencePiece model, which the library follows unchecked.

They are the length of a double array in 4 bytes, the array (units of 32 bits, as `darts-clone` defines them),
and then the replacements, each ended by a null byte. A unit that points outside would end the process.
"""

import numpy as np

_UNIT_BYTES = 4
_BLOCK = 256  # a unit has a place for each next byte


def check_character_map(data: bytes) -> bool:
    """Return True if every unit of the array points into the array or to the beginning of a character."""
    size = int.from_bytes(data[:_UNIT_BYTES], "little")
    if size == 0 or size % (_UNIT_BYTES * _BLOCK) or _UNIT_BYTES + size >= len(data):
        return False
    units = np.frombuffer(data, "<u4", size // _UNIT_BYTES, _UNIT_BYTES)
    replacements = data[_UNIT_BYTES + size :]
    try:
        replacements.decode()
    except UnicodeDecodeError:
        return False
    if replacements[-1]:
        return False
    inner = np.flatnonzero(units >> 31 == 0)  # the others hold the place of a replacement
    offsets = (units[inner] >> 10) << ((units[inner] & 0x200) >> 6)
    targets = inner ^ offsets
    if (targets | (_BLOCK - 1)).max(initial=0) >= len(units):
        return False
    places = units[targets[(units[inner] >> 8) & 1 == 1]] & 0x7FFFFFFF
    if places.max(initial=0) >= len(replacements):
        return False
    begins = np.frombuffer(replacements, np.uint8)[places] & 0xC0 != 0x80
    return bool(begins.all())
