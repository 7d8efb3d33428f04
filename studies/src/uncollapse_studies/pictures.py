"""The pictures of docs/report.md: the page that its example writes, photographed with a Chromium."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

DOCUMENT, PAGE, FOLDER = Path("docs/report.md"), "report.html", Path("docs/images")
DEMO_TABLES = Path("studies/results/demo")
EXAMPLE = re.compile(r"^```python\n(.*?)^```$", flags=re.MULTILINE | re.DOTALL)
CHROMIUMS = ("chromium", "chromium-browser", "google-chrome")
ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
MARGIN = 16  # pixels above and below what is shown


@dataclass(frozen=True)
class Picture:
    """A part of the page, from one element to another, at the width of a window."""

    file: str
    width: int
    scheme: Literal["light", "dark"]
    first: str
    last: str


PICTURES = (
    Picture("report-light.png", 1300, "light", "h1", "#similarity-violins"),
    Picture("report-dark.png", 1300, "dark", "#gap-points", "#entropy-histogram"),
    Picture("report-phone-light.png", 400, "light", "h1", "#depth-strip"),
    Picture("report-phone-dark.png", 400, "dark", "#similarity-violins", "#gap-points"),
)


def write_example(root: Path, folder: Path) -> Path:
    """Run the first example of docs/report.md, which writes a page into `folder`."""
    found = EXAMPLE.search((root / DOCUMENT).read_text(encoding="utf-8"))
    if found is None:
        raise ValueError(f"{root / DOCUMENT} has no example in Python.")
    subprocess.run([sys.executable, "-c", found[1]], cwd=folder, check=True)
    return folder / PAGE


def photograph(root: Path, folder: Path) -> list[Path]:
    """Take all pictures of the example's page into `folder`; a ValueError says what is missing."""
    with _browser() as browser:
        page = write_example(root, folder)
        return [_take(browser, page, picture, folder) for picture in PICTURES]


@contextmanager
def _browser() -> Iterator[Browser]:
    chromium = next(filter(None, map(shutil.which, CHROMIUMS)), None)
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        raise ValueError("playwright is not installed; pip install playwright.") from None
    if chromium is None:
        raise ValueError("no Chromium was found on this system; install the package chromium.")
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium, args=ARGUMENTS)
        yield browser
        browser.close()


def _take(browser: Browser, page: Path, picture: Picture, folder: Path) -> Path:
    context = browser.new_context(viewport={"width": picture.width, "height": 900}, color_scheme=picture.scheme)
    window = context.new_page()
    window.goto(page.resolve().as_uri())
    window.wait_for_selector("html[data-drawn]", timeout=60_000)
    top, bottom = _edge(window, picture.first, "top"), _edge(window, picture.last, "bottom")
    clip = {"x": 0.0, "y": max(0.0, top - MARGIN), "width": float(picture.width), "height": bottom - top + 2 * MARGIN}
    window.screenshot(path=folder / picture.file, full_page=True, clip=clip)  # type: ignore[arg-type]
    context.close()
    return folder / picture.file


def _edge(window: Page, selector: str, side: str) -> float:
    """The upper or lower edge, in pixels from the top, of the section around an element, or of the element itself."""
    script = "([s, side]) => { const e = document.querySelector(s); return (e.closest('.card') ?? e)"
    return float(window.evaluate(f"{script}.getBoundingClientRect()[side] + scrollY; }}", [selector, side]))
