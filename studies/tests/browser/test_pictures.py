"""The pictures of the report page are written by a command, from the example in docs/report.md."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

from uncollapse.cli import main
from uncollapse_studies.pictures import CHROMIUMS, FOLDER, PICTURES

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
    words = [sys.executable, "-m", "uncollapse", "reproduce", "pictures", "--project", str(checkout)]
    run = subprocess.run(words, capture_output=True, text=True)  # the other tests' browser runs in this process
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
    assert main(["reproduce", "pictures", "--project", str(checkout)]) == 2
    error = capsys.readouterr().err
    assert "Chromium was found" in error or "playwright is not installed" in error
