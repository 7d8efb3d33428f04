"""The pictures of docs/images are written by a command: the example of docs/report.md, and the demo."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

from uncollapse.cli import main
from uncollapse.cli.demo import PICTURE, TABLES
from uncollapse.training.demo.runs import DemoSize
from uncollapse_studies.pictures import CHROMIUMS, DEMO_TABLES, FOLDER, PICTURES

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def checkout(tmp_path):
    (tmp_path / "studies").mkdir()
    (tmp_path / "docs").mkdir()
    shutil.copy(ROOT / "docs" / "report.md", tmp_path / "docs" / "report.md")
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "uncollapse"\n')
    return tmp_path


def test_light_and_dark_on_a_screen_and_on_a_phone(checkout):
    pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if not any(map(shutil.which, CHROMIUMS)):
        pytest.skip("no Chromium on this system; install the package chromium")
    words = ["uncollapse", "reproduce", "pictures", "--only", "report", "--project", str(checkout)]
    run = subprocess.run(
        [sys.executable, "-m", *words], capture_output=True, text=True
    )  # the other tests' browser runs in this process
    assert run.returncode == 0, run.stderr
    for picture in PICTURES:
        image = Image.open(checkout / FOLDER / picture.file).convert("L")
        assert image.width == picture.width
        brightness = sum(value * count for value, count in enumerate(image.histogram())) / (image.width * image.height)
        assert brightness < 80 if picture.scheme == "dark" else brightness > 180
        assert (ROOT / FOLDER / picture.file).is_file()
        assert picture.file in (ROOT / "docs" / "report.md").read_text()


def test_without_a_chromium_it_says_what_to_install(checkout, monkeypatch, capsys):
    monkeypatch.setattr("uncollapse_studies.pictures.shutil.which", lambda name: None)
    assert main(["reproduce", "pictures", "--only", "report", "--project", str(checkout)]) == 2
    error = capsys.readouterr().err
    assert "Chromium was found" in error or "playwright is not installed" in error


def test_the_demo_leaves_its_picture_and_its_tables(checkout, monkeypatch):
    tiny = DemoSize(layers=2, heads=2, width=16, piece=4, batch=2, steps=6, warmup=2, every=2, held_out=4)
    monkeypatch.setattr("uncollapse.training.demo.runs.FULL", tiny)
    (checkout / FOLDER).mkdir(parents=True)
    assert main(["reproduce", "pictures", "--only", "demo", "--project", str(checkout)]) == 0
    with Image.open(checkout / FOLDER / PICTURE) as image, Image.open(ROOT / FOLDER / PICTURE) as committed:
        assert image.height > 300
        assert committed.height > 300
    for table in TABLES:
        assert (checkout / DEMO_TABLES / table).is_file()
        assert (ROOT / DEMO_TABLES / table).is_file()
