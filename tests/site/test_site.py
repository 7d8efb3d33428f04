"""The site: every public name, every page, no dead link, nothing from the network; and the check finds faults."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import uncollapse as uc

ROOT = Path(__file__).resolve().parents[2]
GENERATOR = ROOT / "docs" / "generator"


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """Built as `make docs` does."""
    pytest.importorskip("sphinx", reason="the extra docs is not installed")
    out = tmp_path_factory.mktemp("site") / "site"
    command = [sys.executable, str(GENERATOR / "build.py"), str(out)]
    done = subprocess.run(command, cwd=out.parent, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return out


@pytest.fixture(scope="module")
def links():
    sys.path.insert(0, str(GENERATOR))
    try:
        import links
    finally:
        sys.path.remove(str(GENERATOR))
    return links


def test_every_page_of_docs_is_on_it_and_in_the_side_bar(site):
    index = (site / "index.html").read_text(encoding="utf-8")
    for page in (ROOT / "docs").glob("*.md"):
        assert (site / f"{page.stem}.html").is_file()
        assert page.stem == "index" or f'href="{page.stem}.html"' in index


@pytest.mark.parametrize("page", sorted((ROOT / "docs").glob("*.md")), ids=lambda path: path.stem)
def test_every_page_says_its_limits(page):
    if page.stem in ("index", "claims", "results"):
        pytest.skip("a list, or written by a command from results that have limits of their own")
    assert re.search(r"^## Limits|\*\*Limits\.\*\*", page.read_text(encoding="utf-8"), flags=re.MULTILINE)


def test_every_public_name_has_an_entry_made_of_its_docstring(site):
    text = "".join(path.read_text(encoding="utf-8") for path in (site / "api").glob("*.html"))
    names = [name for name in uc.__all__ if name not in ("__version__", "metrics", "remedies", "theory")]
    names += [
        f"{room}.{name}"
        for room in ("metrics", "remedies", "theory")
        for name in getattr(uc, room).__all__
        if name not in uc.__all__
    ]
    missing = [name for name in names if f'id="uncollapse.{name}"' not in text]
    assert not missing
    assert "The arguments that <code" in text  # of hopfield_attention


def test_it_can_be_searched_without_a_server(site):
    index = (site / "searchindex.js").read_text(encoding="utf-8")
    assert index.startswith("Search.setIndex(")  # a script: a browser loads it from disk as well
    assert "hopfield_attention" in index


def test_dead_links_are_found(links, tmp_path):
    (tmp_path / "a.html").write_text('<h1 id="top">A</h1><a href="b.html#here">b</a><a href="#top">up</a>')
    (tmp_path / "b.html").write_text('<p id="here"></p><img src="c.png"><a href="https://example.org">web</a>')
    (tmp_path / "c.png").write_bytes(b"")
    assert links.dead_links(tmp_path) == []
    (tmp_path / "b.html").write_text(
        '<a href="absent.html">x</a><a href="a.html#nowhere">y</a><script src="https://cdn.example.org/x.js"></script>'
    )
    assert links.dead_links(tmp_path) == [
        "a.html links to b.html#here, and there is no such place on that page",
        "b.html links to absent.html, which is not there",
        "b.html links to a.html#nowhere, and there is no such place on that page",
        "b.html loads https://cdn.example.org/x.js from elsewhere",
    ]


def test_a_folder_that_is_no_site_is_not_replaced(tmp_path):
    pytest.importorskip("sphinx", reason="the extra docs is not installed")
    (tmp_path / "mine.txt").write_text("keep me")
    command = [sys.executable, str(GENERATOR / "build.py"), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 1
    assert "is there and is no site" in done.stderr
    assert (tmp_path / "mine.txt").read_text() == "keep me"
