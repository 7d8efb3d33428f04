"""WatchCallback: `uc.watch` in a Lightning Trainer; needs the package lightning, which no extra installs."""

from __future__ import annotations

from typing import Any

from .front import Watch, watch

try:
    from lightning.pytorch import Callback
except ModuleNotFoundError:
    Callback = object


class WatchCallback(Callback):  # type: ignore[misc]  # lightning has no types here
    """Watches the model that a Lightning Trainer trains; takes the keyword arguments of `uc.watch`.

    The tables are those of `callback.watch`. With several optimizers the first one's steps are the updates. A module
    that calls a model of its own in `training_step` is watched as a whole: give `model` to watch that part alone.
    """

    def __init__(self, model: str = "", **settings: Any) -> None:
        if Callback is object:
            raise ImportError("WatchCallback needs the package lightning: pip install lightning.")
        super().__init__()
        self.path, self.settings = model, settings
        self.watch: Watch | None = None

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Begin; the optimizers are there by now."""
        optimizer = trainer.optimizers[0] if trainer.optimizers else None
        self.watch = watch(pl_module.get_submodule(self.path), optimizer, **self.settings)
        self.watch.schedule.done = trainer.global_step

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Leave the model as it was found."""
        self._close()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Likewise."""
        self._close()

    def _close(self) -> None:
        if self.watch is not None:
            self.watch.close()
