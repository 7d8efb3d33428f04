"""One streaming pass of a model over data: where and how its attention collapses."""

from uncollapse.deprecation import Moved, moved_names

from .model_pass import diagnose
from .observer import Observer
from .result import Diagnosis
from .verdicts import Verdict

__all__ = ["Diagnosis", "Observer", "Verdict", "diagnose"]

__getattr__ = moved_names(
    __name__,
    {
        "DiagnoseCallback": Moved("uncollapse.watching", "DiagnoseCallback", "uncollapse.DiagnoseCallback"),
        "compare_html": Moved(
            "uncollapse.diagnosis.pages", "compare_html", "uncollapse.compare(reports).to_html(path)"
        ),
    },
)
