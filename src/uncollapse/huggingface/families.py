"""The module of version 0.1; now `uncollapse.models.families`."""

from uncollapse.deprecation import moved_module

__getattr__ = moved_module(__name__, "uncollapse.models.families")
