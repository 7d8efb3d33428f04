"""What README and docs print works: Python examples run, commands run, links lead somewhere.

Each block, command and link is a test of its own, named after its page and line.
"""

import contextlib
import functools
import io
import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"
EXAMPLES = [README, *sorted((ROOT / "docs").glob("*.md"))]
LINKED = [*EXAMPLES, *(ROOT / f"{name}.md" for name in ("CONTRIBUTING", "CHANGELOG", "SECURITY", "studies/README"))]

FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", flags=re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)\s]+)\)")
QUICK_DEMO = ["uncollapse", "demo", "--quick", "--out", "my-demo"]
BRIEFLY = ["--steps", "4"]  # a shorter training writes the same files
WORDS = 700  # of README, without its code: two screens
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


def test_readme_is_short():
    text = FENCE.sub("", README.read_text(encoding="utf-8"))
    shown = re.sub(r"<!--.*?-->|\]\([^)]*\)|[|#*`]|---", " ", text)
    assert len(shown.split()) <= WORDS


class RunningPage:
    """The Python blocks of a page, each run once, in their order, in one namespace and one folder."""

    def __init__(self, page: Path, folder: Path) -> None:
        self.blocks, self.folder = blocks(page, "python"), folder
        self.namespace: dict[str, object] = {"__name__": "__main__"}
        self.printed: list[str] = []  # by each block that has run

    def run_to(self, block: Piece) -> str:
        """Run the blocks up to this one that have not run yet, and return what this one printed."""
        last = self.blocks.index(block)
        for new in self.blocks[len(self.printed) : last + 1]:
            printed = io.StringIO()
            with contextlib.chdir(self.folder), contextlib.redirect_stdout(printed):
                exec(compile("\n" * (new.line - 1) + new.text, str(new.page), "exec"), self.namespace)
            self.printed.append(printed.getvalue())
        return self.printed[last]


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    """The page of that path, as far as it has run."""
    return functools.cache(lambda page: RunningPage(page, tmp_path_factory.mktemp(page.stem)))


@pytest.mark.filterwarnings("error:uncollapse:DeprecationWarning")  # docs show no name that is about to go
@each(PYTHON)
def test_python_block_runs(piece, running):
    """Where a block's prints carry a comment, that is what they print."""
    printed = running(piece.page).run_to(piece)
    expected = PRINTED.findall(piece.text)
    if expected:
        assert printed.splitlines() == expected


@pytest.fixture(scope="module")
def run_once(tmp_path_factory):
    """Run a command in a folder of its own; the same words run only the first time. Returns the folder."""

    @functools.cache
    def ran(*words: str) -> Path:
        folder = tmp_path_factory.mktemp("command")
        run(list(words), folder)
        return folder

    return ran


@each(BASH, with_text=True)
def test_command_works(piece, run_once):
    words = shlex.split(piece.text)
    if words[:2] == ["pip", "install"]:
        check_install(words)
    elif words == ["make", "test"]:
        check_make_test()
    elif words == ["make", "demo"]:
        check_make_demo(run_once)
    else:
        run_once(*words)


def check_install(words: list[str]) -> None:
    """Installing would change the environment that runs this test: look instead at the files that it reads."""
    assert words[:3] == ["pip", "install", "-c"], f"not checked by this test: {shlex.join(words)}"
    constraints, *requirements = words[3:]
    assert (ROOT / constraints).is_file()
    assert requirements
    for requirement in requirements:
        folder, _, extras = requirement.rstrip("]").partition("[")
        project = tomllib.loads((ROOT / folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        assert set(filter(None, extras.split(","))) <= project.get("optional-dependencies", {}).keys()


def check_make_test() -> None:
    """Running it would run this test again: look at what it would run."""
    assert re.search(r"python -m pytest( |$)", would_make("test"))


def check_make_demo(run_once: Callable[..., Path]) -> None:
    """`make demo` trains for minutes and writes into the repository: look at what the quick demo writes elsewhere."""
    assert shlex.split(would_make("demo")) == [".venv/bin/uncollapse", "demo", "--force"]
    out = run_once(*QUICK_DEMO, *BRIEFLY) / "my-demo"
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
    """Run a command with this Python's scripts first on the path, and return what it printed."""
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
