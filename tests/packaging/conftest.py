"""Both packages as they would be published, and environments that have them and not this checkout."""

import os
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Built:
    """The two files of a published package."""

    wheel: Path
    sdist: Path


@dataclass(frozen=True)
class Environment:
    """A virtual environment; its commands run in an empty folder and see nothing of the checkout."""

    root: Path
    folder: Path

    def run(self, *words):
        """Run a script of the environment, for example `run("uncollapse", "--help")`."""
        hidden = ("PYTHONPATH", "VIRTUAL_ENV")
        environment = {name: value for name, value in os.environ.items() if name not in hidden}
        return subprocess.run(
            [self.root / "bin" / words[0], *words[1:]],
            cwd=self.folder,
            # The compiled tiles are keyed by torch's folder, which is another one here: do not compile them again.
            env={**environment, "OMP_NUM_THREADS": "1", "UNCOLLAPSE_NATIVE": "0"},
            capture_output=True,
            text=True,
            timeout=300,
        )


def build(project, out):
    """The source distribution, and the wheel that is made of it; with what is installed here, so without a network."""
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", out, project]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return Built(*out.glob("*.whl"), *out.glob("*.tar.gz"))


@pytest.fixture(scope="session")
def library(tmp_path_factory):
    return build(ROOT, tmp_path_factory.mktemp("library"))


@pytest.fixture(scope="session")
def studies(tmp_path_factory):
    return build(ROOT / "studies", tmp_path_factory.mktemp("studies"))


@pytest.fixture
def environment_with(tmp_path):
    """Make a virtual environment with the given wheels; their requirements are linked from the one that runs this."""

    def make(*wheels):
        root, requirements, folder = (tmp_path / name for name in ("environment", "requirements", "elsewhere"))
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", root], check=True)
        requirements.mkdir()
        folder.mkdir()
        for file in Path(sysconfig.get_path("purelib")).iterdir():
            # Ours are installed from the wheels. Files that name folders (.pth) are only read in site-packages itself.
            if not file.name.startswith("uncollapse"):
                (requirements / file.name).symlink_to(file)
        (site,) = root.glob("lib/python*/site-packages")
        (site / "requirements.pth").write_text(f"{requirements}\n", encoding="utf-8")
        pip = [sys.executable, "-m", "pip", "--python", root / "bin" / "python", "install", "--no-index", "--no-deps"]
        done = subprocess.run([*pip, *wheels], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return Environment(root, folder)

    return make
