"""The module of version 0.1; now `uncollapse.models.convert` and `uncollapse.remedies`."""

from uncollapse.deprecation import Moved, moved_names

_ROOMS = {
    "convert": "models.convert",
    "set_alpha": "models.convert",
    "from_pretrained": "remedies",
    "restore": "remedies",
}

__getattr__ = moved_names(
    __name__, {name: Moved(f"uncollapse.{room}", name, f"uncollapse.{room}.{name}") for name, room in _ROOMS.items()}
)
