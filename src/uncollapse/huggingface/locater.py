"""The module of version 0.1; now `uncollapse.remedies.locater`."""

from uncollapse.deprecation import moved_module

__getattr__ = moved_module(__name__, "uncollapse.remedies.locater")
