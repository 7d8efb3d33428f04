"""One streaming pass of a model over data: where and how its attention collapses."""

from .model_pass import diagnose
from .observer import Observer
from .result import Diagnosis
from .verdicts import Verdict

__all__ = ["Diagnosis", "Observer", "Verdict", "diagnose"]
