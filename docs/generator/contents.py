"""The order of the pages on the site. What is not named here comes last, by its name."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SECTIONS = {
    "What do you want to do?": [
        *("my-run-spikes", "is-this-checkpoint-healthy", "use-inherited-scores", "reproduce", "many-gpus", "trackers"),
        *("extend", "command-line"),
    ],
    "Rooms": [
        *("attention", "backends", "gpu", "diagnose", "watch", "remedies", "models", "any-model", "report", "training"),
        *("locater", "reliability", "compare", "bench", "theory"),
    ],
    "What we found": ["what-helps", "results", "audit", "claims"],
    "Project": ["CONTRIBUTING", "CHANGELOG", "SECURITY"],
}
TITLES = {"claims": "Every statement of the papers", "reproduce": "Reproduce a paper"}  # in place of their own
BESIDE = ("CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")  # pages of the site that lie beside docs/


def pages() -> dict[str, Path]:
    """Name on the site -> file, of every page that is written by hand."""
    found = {path.stem: path for path in sorted((ROOT / "docs").glob("*.md"))}
    return found | {Path(name).stem: ROOT / name for name in BESIDE}


def notebooks() -> dict[str, Path]:
    """Name on the site -> file, of every notebook."""
    return {path.stem: path for path in sorted((ROOT / "notebooks").glob("*.ipynb"))}


def trees() -> str:
    """The side bar: each section as a table of contents, for the end of the first page."""
    known = pages()
    named = [name for names in SECTIONS.values() for name in names]
    rest = [name for name in known if name not in named and name != "index"]
    sections = {
        **{title: [name for name in names if name in known] for title, names in SECTIONS.items()},
        "Notebooks": [f"notebooks/{name}" for name in notebooks()],
        "More": rest,
        "Reference": ["api/index"],
    }
    return "\n".join(
        "\n".join([f"```{{toctree}}\n:hidden:\n:caption: {title}", "", *map(_entry, names), "```", ""])
        for title, names in sections.items()
        if names
    )


def _entry(name: str) -> str:
    return f"{TITLES[name]} <{name}>" if name in TITLES else name
