"""The module of version 0.1; now `uncollapse.models.reporters`."""

from uncollapse.deprecation import moved_module

__getattr__ = moved_module(__name__, "uncollapse.models.reporters")
