"""The numbers of a diagnosis while a model trains."""

from .callback import DiagnoseCallback

__all__ = ["DiagnoseCallback"]
