"""The system's Chromium, driven by playwright; without one of them these tests are skipped and say so."""

import shutil
from dataclasses import dataclass, field

import pytest

NAMES = ["chromium", "chromium-browser", "google-chrome"]
ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-dev-shm-usage"]


@pytest.fixture(scope="session")
def browser():
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    chromium = next(filter(None, map(shutil.which, NAMES)), None)
    if chromium is None:
        pytest.skip("no Chromium on this system; install the package chromium")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium, args=ARGUMENTS)
        yield browser
        browser.close()


@dataclass
class Watched:
    """An open page, and all that it said or asked for."""

    page: object
    said: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)


@pytest.fixture
def visit(browser):
    """Open a file in a window of its own; waits until its charts are drawn."""
    contexts = []

    def opened(file, width=1040, scheme="light") -> Watched:
        context = browser.new_context(viewport={"width": width, "height": 800}, color_scheme=scheme)
        contexts.append(context)
        watched = Watched(context.new_page())
        watched.page.on("console", lambda message: watched.said.append(message.text))
        watched.page.on("pageerror", lambda error: watched.said.append(str(error)))
        watched.page.on("request", lambda request: watched.requests.append(request.url))
        watched.page.goto(file.as_uri())
        watched.page.wait_for_selector("html[data-drawn]", timeout=60_000)
        return watched

    yield opened
    for context in contexts:
        context.close()
