"""`uncollapse reproduce claims`: what it writes and says; docs say what the committed results say."""

import csv
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from made_cells import written

from uncollapse.cli import main
from uncollapse_studies.audit.audit import audit, code
from uncollapse_studies.audit.claim import CLAIMS
from uncollapse_studies.audit.registry import claims
from uncollapse_studies.charts.claims_markdown import claims_markdown, count_table, root_table
from uncollapse_studies.charts.claims_page import FALLS, STANDS, claims_page
from uncollapse_studies.cli.claims import code_link

ROOT = Path(__file__).resolve().parents[3]
RECORD = json.loads((ROOT / "studies/results/claims.json").read_text(encoding="utf-8"))
HOSTILE = "</script><img src=x onerror=\"document.title='owned'\">"


def test_only_writes_the_four_files_and_prints_a_table(tmp_path, capsys):
    out = tmp_path / "audit"
    arguments = ["reproduce", "claims", "--only", "localization-eq7", "--quick", "--out", str(out)]
    assert main([*arguments, "--svg"]) == 0
    assert {file.name for file in out.iterdir()} == {f"claims.{kind}" for kind in ("json", "csv", "md", "html", "svg")}
    printed = capsys.readouterr().out
    assert printed.startswith("3 statements\n")
    assert "   1  holds under a condition" in printed
    assert "1 fail as printed, for 1 distinct reasons of substance and no misprints" in printed
    record = json.loads((out / "claims.json").read_text(encoding="utf-8"))
    assert [row["id"] for row in record["claims"]] == [f"localization-eq7-{n}" for n in ("first", "second", "third")]
    assert record["size"] == "smallest"
    assert "torch" in record["versions"]
    with (out / "claims.csv").open(encoding="utf-8", newline="") as stream:
        assert [row["verdict"] for row in csv.DictReader(stream)] == [row["verdict"] for row in record["claims"]]
    page = (out / "claims.html").read_text(encoding="utf-8")
    assert "studies/src/uncollapse_studies/localization/claims/norms.py" in page
    assert main(arguments) == 2  # nothing is overwritten unasked
    assert "--force" in capsys.readouterr().err


def test_a_crash_is_said_to_be_a_bug_and_ends_with_one(tmp_path, capsys, monkeypatch):
    def broken(run):
        raise ValueError("two and two are five")

    good = claims()["localization-fig3-eta"]
    monkeypatch.setitem(CLAIMS, good.id, replace(good, check=broken))
    out = tmp_path / "audit"
    assert main(["reproduce", "claims", "--only", "localization-fig3", "--quick", "--out", str(out)]) == 1
    said = capsys.readouterr()
    assert "1 checks crashed, which is a bug: localization-fig3-eta" in said.err
    assert "not the paper's own statement" in said.out  # the other one
    assert "two and two are five" in (out / "claims.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["claims", "--only", "localization-lemma9"], "there is no claim 'localization-lemma9'; did you mean localiz"),
        (["claim"], "did you mean claims?"),
    ],
)
def test_mistakes_are_one_sentence(arguments, sentence, capsys):
    assert main(["reproduce", *arguments]) == 2
    error = capsys.readouterr().err
    assert sentence in error
    assert error.count("\n") == 1


def test_cells_can_lie_elsewhere(tmp_path, capsys):
    claim = claims()["hopfield-main-gpt2"]
    run = written(tmp_path / "cells", claim.mutation.cells)
    arguments = ["reproduce", "claims", "--only", claim.id, "--out", str(tmp_path / "out")]
    assert main([*arguments, "--cells", str(run.cells)]) == 0
    assert "   1  holds" in capsys.readouterr().out


def test_a_trained_claim_that_fails_leaves_the_conclusion_open(tmp_path):
    claim = claims()["hopfield-main-gpt2"]
    (row,) = audit([claim], written(tmp_path, claim.opposite.cells))
    assert (row["verdict"], row["survives"]) == ("not reproduced at small scale", None)
    assert row["consequence"] == claim.for_user("not reproduced at small scale")
    assert row["changed"] == {"says": "made-up cells that agree with it", "verdict": "holds"}
    record = RECORD | {"claims": [row]}
    for page in (claims_page(record, lambda check: None, ""), claims_markdown(record)):
        assert row["consequence"] in page
        assert STANDS not in page
        assert FALLS not in page
        assert "Right form" not in page


def test_code_is_linked_in_the_repository_if_it_is_known(tmp_path):
    check = code(claims()["localization-eq7-first"])
    address = code_link(tmp_path, "https://example.org/uncollapse")(check)
    assert address == f"https://example.org/uncollapse/blob/main/{check['file']}#L{check['line']}"
    relative = code_link(tmp_path, None)(check)
    assert (tmp_path / relative).resolve() == ROOT / check["file"]
    assert code_link(tmp_path, None)({"file": "studies/src/absent.py", "line": 1}) is None


def hostile() -> dict:
    row = RECORD["claims"][0] | {"id": "hopfield-x", "plot": {**_plot(), "rows": [[1.0, 1.0, HOSTILE]]}}
    names = ("place", "statement", "evidence", "corrected", "consequence", "quote", "unverified", "changes_our_mind")
    row |= dict.fromkeys(names, HOSTILE) | {
        "perturbed": HOSTILE,
        "numbers": {HOSTILE: HOSTILE},
        "changed": {"says": HOSTILE, "verdict": "fails"},
    }
    root = {"id": HOSTILE, "kind": "misprint", "title": HOSTILE, "paper": "hopfield", "claims": [HOSTILE]}
    return RECORD | {"claims": [row], "roots": [root], "headline": HOSTILE, "withdrawn": {HOSTILE: HOSTILE}}


def _plot() -> dict:
    return next(row["plot"] for row in RECORD["claims"] if row["plot"])


def test_page_and_markdown_escape_what_they_are_given():
    page = claims_page(hostile(), lambda check: HOSTILE, HOSTILE)
    assert "<img src=x" not in page
    assert "</script><img" not in page
    assert "<img" not in claims_markdown(hostile())


def test_docs_are_what_the_generator_writes():
    written = (ROOT / "docs/claims.md").read_text(encoding="utf-8")
    assert written == claims_markdown(RECORD), "run `uncollapse reproduce claims` and copy claims.md to docs/"


def test_the_page_of_the_audit_gives_the_committed_numbers():
    room = (ROOT / "docs/audit.md").read_text(encoding="utf-8")
    assert RECORD["headline"] in room
    assert "images/claims.png" in room
    for line in (*count_table(RECORD), *root_table(RECORD)):
        assert line in room
    assert not re.search(r"\berror\b.*[1-9]", "\n".join(count_table(RECORD)))
