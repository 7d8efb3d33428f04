"""A checkpoint counts only if all of it is there as it was written."""

import json

import pytest

from uncollapse.training import checkpoints
from uncollapse.training.run_folder import RunFolder


@pytest.fixture
def folder(tmp_path):
    for step in (10, 20, 30):
        checkpoint = tmp_path / f"checkpoint-{step}"
        (checkpoint / "part").mkdir(parents=True)
        (checkpoint / "model").write_bytes(b"weights of %d" % step)
        (checkpoint / "part" / "optimizer").write_bytes(b"state of %d" % step)
        checkpoints.seal(checkpoint)
    return tmp_path


def test_the_newest_that_verifies_is_found(folder):
    assert checkpoints.last_good(folder) == (folder / "checkpoint-30", [])


@pytest.mark.parametrize(
    ("harm", "reason"),
    [
        (lambda c: (c / "model").write_bytes(b"weights"), "model has 7 bytes, not 13"),
        (lambda c: (c / "model").write_bytes(b"Weights of 30"), "the content of model has changed"),
        (lambda c: (c / "part" / "optimizer").unlink(), "part/optimizer is missing"),
        (lambda c: (c / "manifest.json").unlink(), "it was not finished (no manifest)"),
        (lambda c: (c / "manifest.json").write_text("{"), "its manifest cannot be read"),
    ],
)
def test_a_harmed_one_is_named_and_the_one_before_used(folder, harm, reason):
    newest = folder / "checkpoint-30"
    harm(newest)
    good, said = checkpoints.last_good(folder)
    assert good == folder / "checkpoint-20"
    assert said == [f"{newest} is not used: {reason}."]


def test_two_that_verify_are_kept(folder):
    (folder / "checkpoint-20" / "model").write_bytes(b"")
    checkpoints.rotate(folder)
    assert [c.name for c in checkpoints.newest_first(folder)] == ["checkpoint-30", "checkpoint-10"]


def test_nothing_to_find(tmp_path):
    assert checkpoints.last_good(tmp_path / "absent") == (None, [])


def test_metrics_after_the_step_are_cut_and_a_half_line_is_dropped(tmp_path):
    folder = RunFolder(tmp_path)
    folder.append_metrics([{"step": s, "loss": float("nan") if s == 2 else 1.0 / s} for s in (1, 2, 3)])
    with folder.metrics_file.open("a") as file:
        file.write('{"step": 4, "lo')
    assert [line["step"] for line in folder.metrics()] == [1, 2, 3]
    folder.cut_metrics(2)
    lines = folder.metrics_file.read_text().splitlines()
    assert [json.loads(line) for line in lines] == [{"step": 1, "loss": 1.0}, {"step": 2, "loss": None}]


def test_a_second_process_is_refused_while_the_first_holds_the_folder(tmp_path):
    folder = RunFolder(tmp_path)
    with folder.locked(), pytest.raises(ValueError, match="another process is training in"), folder.locked():
        pass
    with folder.locked():
        pass
