"""WatchCallback: `uc.watch` in a Lightning Trainer; needs the extra lightning."""

from __future__ import annotations

from typing import Any

from torch import nn

from uncollapse.models.convert import find_transformers_model

from .front import Watch, watch

try:
    from lightning.pytorch import Callback, LightningModule
except ModuleNotFoundError:
    Callback = LightningModule = object  # type: ignore[assignment, misc]


class WatchCallback(Callback):
    """Watches the model that a Lightning Trainer trains; takes the keyword arguments of `uc.watch`.

    The tables are those of `callback.watch`. With several optimizers the first one's steps are the updates.

    Args:
        model: path of the network inside the LightningModule. By default what `training_step` calls is found: the
            module itself if it has a `forward`, else a model of transformers or the only part with parameters in it.
        settings: keyword arguments of `uc.watch`.
    """

    def __init__(self, model: str = "", **settings: Any) -> None:
        if Callback is object:
            raise ImportError("WatchCallback needs the package lightning: pip install 'uncollapse[lightning]'.")
        super().__init__()
        self.path, self.settings = model, settings
        self.watch: Watch | None = None

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Begin; the optimizers are there by now."""
        optimizer = trainer.optimizers[0] if trainer.optimizers else None
        self.watch = watch(self._network(pl_module), optimizer, **self.settings)
        self.watch.schedule.done = trainer.global_step

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Leave the model as it was found."""
        self._close()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Likewise."""
        self._close()

    def _network(self, module: Any) -> nn.Module:
        """What is watched: a forward of the LightningModule itself may never run."""
        if self.path or type(module).forward is not LightningModule.forward or find_transformers_model(module):
            found: nn.Module = module.get_submodule(self.path)
            return found
        parts: dict[str, nn.Module] = {
            name: part for name, part in module.named_children() if any(True for _ in part.parameters())
        }
        if len(parts) != 1:
            names = ", ".join(map(repr, parts)) or "none"
            raise ValueError(
                f"{type(module).__name__} has no forward and its parts with parameters are {names}; "
                "name the one to watch: WatchCallback('PART')."
            )
        return next(iter(parts.values()))

    def _close(self) -> None:
        if self.watch is not None:
            self.watch.close()
