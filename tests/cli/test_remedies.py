"""`uncollapse remedies` lists what is known to help, and draws where it acts."""

import json
from xml.etree import ElementTree

import pytest

from uncollapse.cli import main
from uncollapse.remedies.contents import BY_NAME
from uncollapse.report.remedies_picture import remedies_picture


def test_every_remedy_is_listed_with_its_evidence(capsys):
    assert main(["remedies"]) == 0
    text = capsys.readouterr().out
    assert all(f"{name}: against" in text for name in BY_NAME)
    assert main(["remedies", "--json"]) == 0
    assert [row["name"] for row in json.loads(capsys.readouterr().out)] == list(BY_NAME)


def test_every_remedy_is_in_the_picture_and_no_file_is_replaced(tmp_path, capsys):
    file = tmp_path / "remedies.svg"
    assert main(["remedies", "--svg", str(file)]) == 0
    words = " ".join(ElementTree.fromstring(file.read_text()).itertext())
    assert all(name in words for name in BY_NAME)
    assert main(["remedies", "--svg", str(file)]) == 2
    assert "exists" in capsys.readouterr().err
    with pytest.raises(ValueError, match="no place for new_one"):
        remedies_picture([{"name": "new_one", "place": "here"}])
