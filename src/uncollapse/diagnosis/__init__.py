"""One streaming pass of a model over data: where and how its attention collapses."""

from .model_pass import diagnose
from .observer import Observer
from .pages import compare_html
from .result import Diagnosis
from .verdicts import Verdict

__all__ = ["Diagnosis", "Observer", "Verdict", "compare_html", "diagnose"]
