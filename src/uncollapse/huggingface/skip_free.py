"""The module of version 0.1; now `uncollapse.models.skip_free`."""

from uncollapse.deprecation import moved_module

__getattr__ = moved_module(__name__, "uncollapse.models.skip_free")
