"""What `uncollapse` prints when it is called without arguments: from what you want to do to the command."""

from __future__ import annotations

import textwrap

from uncollapse import __version__

from .text_table import text_table

WISHES = (  # what you want to do, the command
    ("see what collapse looks like, in a few minutes", "uncollapse demo --quick"),
    ("know whether a model is healthy", "uncollapse diagnose gpt2"),
    ("know what got worse since an earlier checkpoint", "uncollapse diagnose NEW --baseline DIAGNOSIS_OF_OLD"),
    ("see what is known to help", "uncollapse remedies"),
    ("train a small model with inherited scores", "uncollapse train quickstart --rule hopfield"),
    ("know what a training needs before you start it", "uncollapse recipes"),
    ("know whether two runs really differ", "uncollapse compare runs/a runs/b"),
    ("know what inherited scores cost on this machine", "uncollapse bench --quick"),
    ("test the GPU kernels on your GPU", "uncollapse gpu-test"),
    ("check the two papers", "uncollapse reproduce list"),
    ("report a bug", "uncollapse doctor"),
)


def guide() -> str:
    """The first screen."""
    return "\n".join(
        [
            f"uncollapse {__version__} finds attention that goes wrong in Transformers and says what is known to help.",
            "",
            textwrap.indent(text_table([("To ...", "type"), *WISHES]), "  "),
            "",
            "In Python, for a model that you have in memory:",
            "",
            "  import uncollapse as uc",
            "  uc.diagnose(model)                         # a report: verdicts, tables, a page",
            "  uc.watch(model, optimizer)                 # the same while it trains, with warnings",
            '  uc.apply(model, "qk_norm")                 # a remedy, in place',
            "  uc.convert(model, alpha_hidden=0.5)        # inherited scores, in place",
            "",
            "uncollapse --help lists every command; uncollapse COMMAND --help shows its options and an example.",
        ]
    )
