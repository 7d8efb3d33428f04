"""A checkpoint counts only if all of it is there as it was written."""

import fcntl
import json

import pytest

from tests.processes import process
from tests.training.compare.run_folders import write_run
from uncollapse import files
from uncollapse.training import checkpoints
from uncollapse.training.compare.reading import read_run
from uncollapse.training.recipe import Recipe
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


@pytest.fixture
def recipe():
    return Recipe.find("quickstart")


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


def test_a_damaged_line_of_metrics_is_named(tmp_path):
    folder = RunFolder(tmp_path)
    folder.append_metrics([{"step": 1, "loss": 1.0}])
    with folder.metrics_file.open("a") as file:
        file.write('{"step": 2, "lo\n')
    with pytest.raises(ValueError, match=r"metrics\.jsonl is damaged: line 2 is not a JSON object"):
        folder.metrics()


def test_a_manifest_that_was_cut_off_is_not_part_of_the_next_one(tmp_path):
    checkpoint = tmp_path / "checkpoint-3"
    checkpoint.mkdir()
    (checkpoint / "model").write_bytes(b"weights")
    (checkpoint / ".manifest.json-0123abcd.tmp").write_text("{")
    checkpoints.seal(checkpoint)
    assert list(json.loads((checkpoint / "manifest.json").read_text())) == ["model"]


def test_a_second_process_is_refused_while_the_first_holds_the_folder(tmp_path):
    folder = RunFolder(tmp_path)
    with folder.locked(), pytest.raises(ValueError, match="another process is training in"), folder.locked():
        pass
    with folder.locked():
        pass


HOLD = """
import time
from pathlib import Path
from uncollapse.training.run_folder import RunFolder
with RunFolder(Path({folder!r})).locked():
    print("held", flush=True)
    time.sleep(600)  # until it is killed
"""


def test_compare_sees_that_a_run_trains_until_its_process_is_killed(tmp_path):
    folder = write_run(tmp_path / "run", status="running", until=10)
    with process(HOLD.format(folder=str(folder))) as holder:
        assert holder.stdout.readline() == "held\n"
        assert read_run(folder).state.startswith("is still training at step 10")
        holder.kill()
    assert read_run(folder).state.startswith("is unfinished (it was ended from outside) at step 10")


def test_a_run_of_version_0_1_holds_the_same_lock(tmp_path):
    folder = RunFolder(write_run(tmp_path / "run", status="running", until=10))
    with folder.lock_file.open("a") as file:  # as version 0.1 locked it
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        assert files.is_locked(folder.lock_file)
        with pytest.raises(ValueError, match="another process is training in"), folder.locked():
            pass
    with folder.locked(), folder.lock_file.open("a") as file, pytest.raises(BlockingIOError):
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_what_a_killed_start_left_does_not_keep_a_run_from_starting(tmp_path, recipe):
    folder = RunFolder(tmp_path / "run")
    with folder.locked():
        (folder.path / ".recipe.yaml-0123abcd.tmp").write_text("na")
        folder.check(recipe, resume=False, force=False)
        folder.begin(recipe, resume=False)
    assert sorted(path.name for path in folder.path.iterdir()) == ["lock", "recipe.yaml"]


WITHOUT_RESOURCE = """
import sys
import psutil  # which transformers imports, and which needs `resource` on Linux
sys.modules["resource"] = None  # as on Windows
from uncollapse.training.run import peak_memory
print(peak_memory())
"""


def test_peak_memory_is_unknown_where_the_system_does_not_count_it():
    from uncollapse.training.run import peak_memory

    assert peak_memory() > 50e6
    run = process(WITHOUT_RESOURCE)
    out, said = run.communicate(timeout=120)
    assert out == "None\n", said
