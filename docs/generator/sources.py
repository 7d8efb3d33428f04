"""The sources of the site: the pages of docs/ with links that hold there, and notebooks as pages."""

import json
import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path

from contents import ROOT, notebooks, pages, trees
from reference import write_reference

FENCE = re.compile(r"^```.*?^```$", flags=re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(?P<image>!?)\[(?P<text>(?:[^\]\[]|\[[^\]]*\])*)\]\((?P<target>[^)\s]+)\)")
PICTURES = {".png", ".svg", ".jpg"}
OUTSIDE = ("http://", "https://", "mailto:", "#")


def write_sources(folder: Path) -> None:
    """Every page into an empty folder."""
    places = {path: Path(f"{name}.md") for name, path in pages().items()}
    places |= {path: Path("notebooks") / f"{name}.md" for name, path in notebooks().items()}
    for path, place in places.items():
        text = as_page(path) if path.suffix == ".ipynb" else path.read_text(encoding="utf-8")
        text = with_links_of_the_site(text, path, place, places, folder)
        if place == Path("index.md"):
            text += "\n" + trees()
        (folder / place).parent.mkdir(exist_ok=True)
        (folder / place).write_text(text, encoding="utf-8")
    write_reference(folder / "api")


def as_page(notebook: Path) -> str:
    """A notebook as Markdown: its text and its code."""
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    sources = [(cell["cell_type"], "".join(cell["source"])) for cell in cells]
    return "\n\n".join(text if kind == "markdown" else f"```python\n{text}\n```" for kind, text in sources) + "\n"


def with_links_of_the_site(text: str, path: Path, place: Path, places: Mapping[Path, Path], folder: Path) -> str:
    """The text of a page with its links to files of the repository turned into what the site has.

    A page becomes the page of the site, a picture is copied, and of anything else the path is named.
    """

    def turned(link: re.Match[str]) -> str:
        target = link["target"]
        if target.startswith(OUTSIDE):
            return link[0]
        file, _, anchor = target.partition("#")
        full = (path.parent / file).resolve()
        if full in places:
            return f"{link['image']}[{link['text']}]({_relative(places[full], place)}{'#' * bool(anchor)}{anchor})"
        name = full.relative_to(ROOT)
        if full.suffix in PICTURES:
            copy = Path("pictures") / name
            (folder / copy).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(full, folder / copy)
            return f"{link['image']}[{link['text']}]({_relative(copy, place)})"
        return f"{link['text']} (`{name}` in the repository)"

    parts, last = [], 0
    for fence in FENCE.finditer(text):
        parts += [LINK.sub(turned, text[last : fence.start()]), fence[0]]
        last = fence.end()
    return "".join([*parts, LINK.sub(turned, text[last:])])


def _relative(target: Path, place: Path) -> str:
    return Path(os.path.relpath(target, place.parent)).as_posix()
