"""What README and docs print works: Python examples run, commands run, links lead somewhere.

Each block, command and link is a test of its own, named after its page and line.
"""

import contextlib
import io
import os
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"
EXAMPLES = [README, *sorted((ROOT / "docs").glob("*.md"))]
LINKED = [*EXAMPLES, ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"]

FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", flags=re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)\s]+)\)")
BRIEFLY = ["--steps", "4"]  # a shorter training writes the same files
PRINTED = re.compile(r"^print\(.*\)  # (.+)$", flags=re.MULTILINE)


@dataclass(frozen=True)
class Piece:
    """A block, a command or a link, and where it stands."""

    page: Path
    line: int
    text: str

    @property
    def name(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def blocks(page: Path, language: str) -> list[Piece]:
    text = page.read_text(encoding="utf-8")
    return [
        Piece(page, text[: fence.start(2)].count("\n") + 1, fence[2])
        for fence in FENCE.finditer(text)
        if fence[1] == language
    ]


def commands(page: Path) -> list[Piece]:
    return [
        Piece(page, block.line + offset, line.partition(" #")[0].strip())
        for block in blocks(page, "bash")
        for offset, line in enumerate(block.text.splitlines())
        if line.strip() and not line.lstrip().startswith("#")
    ]


def links(page: Path) -> list[Piece]:
    """The links and images to files of this repository or to headings; code blocks have none, the web is not asked."""
    text = FENCE.sub(lambda fence: "\n" * fence[0].count("\n"), page.read_text(encoding="utf-8"))
    return [
        Piece(page, number, target)
        for number, line in enumerate(text.splitlines(), start=1)
        for target in LINK.findall(line)
        if not target.startswith(("https://", "http://", "mailto:"))
    ]


def anchors(page: Path) -> set[str]:
    """The names that a page's headings get on GitHub."""
    headings = re.findall(r"^#+ (.+)$", FENCE.sub("", page.read_text(encoding="utf-8")), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def each(pieces: list[Piece], with_text: bool = False) -> pytest.MarkDecorator:
    names = [f"{piece.name} {piece.text}" if with_text else piece.name for piece in pieces]
    return pytest.mark.parametrize("piece", pieces, ids=names)


PYTHON = [block for page in EXAMPLES for block in blocks(page, "python")]
BASH = commands(README)
LINKS = [link for page in LINKED for link in links(page)]


def test_there_is_something_to_test():
    assert any(block.page == README for block in PYTHON)
    assert {"make demo", "make test"} <= {command.text for command in BASH}
    assert any(link.text.endswith(".png") for link in LINKS)


@each(PYTHON)
def test_python_block_runs(piece, tmp_path, monkeypatch):
    """The blocks of a page share one namespace; where a block's prints carry a comment, that is what they print."""
    monkeypatch.chdir(tmp_path)
    namespace = {"__name__": "__main__"}
    for block in blocks(piece.page, "python"):
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile("\n" * (block.line - 1) + block.text, str(block.page), "exec"), namespace)
        if block == piece:
            break
    expected = PRINTED.findall(piece.text)
    if expected:
        assert printed.getvalue().splitlines() == expected


@each(BASH, with_text=True)
def test_command_works(piece, tmp_path):
    words = shlex.split(piece.text)
    if words[:2] == ["pip", "install"]:
        check_install(words)
    elif words == ["make", "test"]:
        check_make_test()
    elif words == ["make", "demo"]:
        check_make_demo(tmp_path)
    elif words[:2] == ["uncollapse", "demo"] and "--help" not in words:
        run([*words, *BRIEFLY], tmp_path)
    else:
        run(words, tmp_path)


def check_install(words: list[str]) -> None:
    """Installing would change the environment that runs this test: look instead at the files that it reads."""
    constraints, project = words[words.index("-c") + 1], words[words.index("-e") + 1]
    assert (ROOT / constraints).is_file()
    assert (ROOT / project / "pyproject.toml").is_file()
    assert len(words) == 6, f"not checked by this test: {shlex.join(words)}"


def check_make_test() -> None:
    """Running it would run this test again: look at what it would run."""
    assert re.search(r"python -m pytest( |$)", would_make("test"))


def check_make_demo(tmp_path: Path) -> None:
    """`make demo` writes into the repository: run what it would run, quickly and elsewhere."""
    words = shlex.split(would_make("demo"))
    assert words == [".venv/bin/uncollapse", "demo", "--force"]
    out = tmp_path / "demo"
    run(["uncollapse", *words[1:], "--quick", *BRIEFLY, "--out", str(out)], tmp_path)
    promised = re.search(
        r"^make demo .* (uncollapse-demo/\S+)$", README.read_text(encoding="utf-8"), flags=re.MULTILINE
    )
    assert promised
    assert (out / Path(promised[1]).name).is_file()


def would_make(target: str) -> str:
    """The last command that a target stands for; the ones before it are set-up."""
    lines = run(["make", "--no-print-directory", "--dry-run", target], ROOT).splitlines()
    return lines[-1]


def run(words: list[str], folder: Path) -> str:
    """Run a command with this Python's scripts first on the path, and give back what it printed."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    environment = os.environ | {"PATH": path, "OMP_NUM_THREADS": "1"}  # tests run side by side: one core each
    done = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, f"{shlex.join(words)} ended with {done.returncode}:\n{done.stdout}{done.stderr}"
    return done.stdout


@each(LINKS, with_text=True)
def test_link_leads_somewhere(piece):
    file, _, anchor = piece.text.partition("#")
    target = piece.page.parent / file if file else piece.page
    assert target.exists()
    assert not anchor or anchor in anchors(target)
