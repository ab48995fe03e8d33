"""The four services. Each is a package with a `__main__.py`; none imports another."""

from shared.compiled_modules import use_in_service

use_in_service()  # before any module that may have been compiled
