"""The module of version 0.1; `uncollapse.release_memory` releases the memory of scores now."""

from uncollapse.deprecation import warn

from .memory import release_memory


class _Pool:
    def release(self) -> None:
        """Call `uncollapse.release_memory`."""
        warn("uncollapse.attention.pool.POOL", "uncollapse.release_memory()")
        release_memory()


POOL = _Pool()
