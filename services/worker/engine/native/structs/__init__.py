"""The structs that Python and the kernels share, a file for each part of `src/`; ops are in `ops.py`.

Field by field as in `src/`. A field that was changed on one side only is refused when the library is loaded
(`library.py`).
"""

from ctypes import c_uint64

ADDRESS = c_uint64  # of memory that the code that fills a struct in keeps alive
