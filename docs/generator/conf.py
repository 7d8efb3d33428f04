"""Sphinx: Markdown by MyST, the reference by autodoc, the theme furo. Everything is local: no fonts, no scripts."""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "src"))

from uncollapse import __version__  # noqa: E402

project = "uncollapse"
author = copyright = "The uncollapse authors"
release = version = __version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
myst_heading_anchors = 4
suppress_warnings = ["myst.header"]  # a page may begin with any heading
default_role = "py:obj"  # `convert` in a docstring is a link to its entry
add_module_names = False
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_preserve_defaults = True
napoleon_google_docstring = True
napoleon_use_rtype = False
python_use_unqualified_type_names = True
html_theme = "furo"
html_title = f"uncollapse {release}"
html_copy_source = False
html_show_sphinx = False
html_theme_options = {"navigation_with_keys": True, "top_of_page_buttons": []}

MARKS = re.compile(r"(?<!`)[|*]")  # norms and products in running text, which reStructuredText would take for marks
SECTION = re.compile(r"^(Args|Returns|Raises|Yields|Attributes|Example|Examples|Note):$")


def literal_formulas(app, what, name, obj, options, lines):
    """Mark indented lines outside of sections as literal: they are formulas, which would be taken for quotations."""
    result, section, literal = [], False, False
    for number, line in enumerate(lines):
        if SECTION.match(line):
            section = True
        elif line and not line[0].isspace():
            section = False
        starts = line.startswith("    ") and not section and (number == 0 or not lines[number - 1].strip())
        if starts and not line.lstrip().startswith(">>>"):
            result += ["::", ""]
            literal = True
        elif line and not line[0].isspace():
            literal = False
        plain = not literal and not line.lstrip().startswith((">>>", "..."))
        result.append(MARKS.sub(r"\\\g<0>", line) if plain else line)
    lines[:] = result


def setup(app):
    """Before napoleon, which turns the sections into fields."""
    app.connect("autodoc-process-docstring", literal_formulas, priority=100)
