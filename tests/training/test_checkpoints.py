"""A checkpoint counts only if all of it is there as it was written."""

import fcntl
import json
import tempfile
from pathlib import Path

import pytest

from tests.processes import process
from tests.test_files import as_somebody_else
from tests.training.compare.run_folders import write_run
from uncollapse import files
from uncollapse.training import checkpoints
from uncollapse.training.compare.reading import read_run
from uncollapse.training.recipe import Recipe
from uncollapse.training.run_folder import RunFolder

SAVED = ("model.safetensors", "optimizer.pt", "scheduler.pt", "rng_state.pth", "trainer_state.json")


def write_checkpoint(folder, step, names=SAVED, processes=1):
    checkpoint = folder / f"checkpoint-{step}"
    for name in names:
        (checkpoint / name).parent.mkdir(parents=True, exist_ok=True)
        (checkpoint / name).write_bytes(b"%d" % step)
    checkpoints.seal(checkpoint, processes=processes)
    return checkpoint


@pytest.fixture
def folder(tmp_path):
    for step in (10, 20, 30):
        write_checkpoint(tmp_path, step)
    return tmp_path


@pytest.fixture
def recipe():
    return Recipe.find("quickstart")


def test_the_newest_that_verifies_is_found(folder):
    assert checkpoints.last_good(folder) == (folder / "checkpoint-30", [])


def leave_out(name):
    """Have neither the file nor its entry in the manifest."""

    def harm(checkpoint):
        (checkpoint / name).unlink()
        manifest = json.loads((checkpoint / "manifest.json").read_text())
        del manifest["files"][name]
        (checkpoint / "manifest.json").write_text(json.dumps(manifest))

    return harm


@pytest.mark.parametrize(
    ("harm", "reason"),
    [
        (lambda c: (c / "optimizer.pt").write_bytes(b""), "optimizer.pt has 0 bytes, not 2"),
        (lambda c: (c / "optimizer.pt").write_bytes(b"31"), "the content of optimizer.pt has changed"),
        (lambda c: (c / "optimizer.pt").unlink(), "optimizer.pt is missing"),
        (lambda c: (c / "manifest.json").unlink(), "it was not finished (no manifest)"),
        (lambda c: (c / "manifest.json").write_text("{"), "its manifest cannot be read"),
        (lambda c: (c / "manifest.json").write_text("{}"), "its manifest names no files"),
        (lambda c: (c / "manifest.json").write_text('{"step": 30, "files": {}}'), "its manifest names no files"),
        (leave_out("model.safetensors"), "its manifest names no file with the weights"),
        (leave_out("optimizer.pt"), "its manifest names no file with the optimizer"),
        (leave_out("scheduler.pt"), "its manifest names no file with the scheduler"),
        (leave_out("rng_state.pth"), "its manifest names no file with the random state"),
        (leave_out("trainer_state.json"), "its manifest names no file with the state of the trainer"),
    ],
)
def test_a_harmed_one_is_named_and_the_one_before_used(folder, harm, reason):
    newest = folder / "checkpoint-30"
    harm(newest)
    good, said = checkpoints.last_good(folder)
    assert good == folder / "checkpoint-20"
    assert said == [f"{newest} is not used: {reason}."]


def test_one_that_was_renamed_to_another_step_is_named(folder):
    (folder / "checkpoint-30").rename(folder / "checkpoint-40")
    good, said = checkpoints.last_good(folder)
    assert good == folder / "checkpoint-20"
    assert said == [f"{folder / 'checkpoint-40'} is not used: its manifest says step 30."]


def test_each_process_needs_its_random_state(tmp_path):
    names = [*SAVED, "rng_state_0.pth", "rng_state_1.pth"]
    checkpoint = write_checkpoint(tmp_path, 10, names, processes=2)
    assert checkpoints.fault(checkpoint) is None
    leave_out("rng_state_1.pth")(checkpoint)
    assert checkpoints.fault(checkpoint) == "its manifest names no file with the random state of process 1"


def test_one_that_lacks_a_part_is_not_sealed(tmp_path):
    with pytest.raises(OSError, match="no file holds the scheduler"):
        write_checkpoint(tmp_path, 10, [name for name in SAVED if name != "scheduler.pt"])


def test_one_of_version_0_1_is_used(tmp_path):
    checkpoint = write_checkpoint(tmp_path, 10)
    (checkpoint / "trainer_state.json").write_text('{"global_step": 10}')
    checkpoints.seal(checkpoint, processes=1)
    manifest = json.loads((checkpoint / "manifest.json").read_text())
    (checkpoint / "manifest.json").write_text(json.dumps(manifest["files"]))
    assert checkpoints.fault(checkpoint) is None
    (checkpoint / "optimizer.pt").write_bytes(b"11")
    assert checkpoints.fault(checkpoint) == "the content of optimizer.pt has changed"


def test_two_that_verify_are_kept(folder):
    (folder / "checkpoint-20" / "model.safetensors").write_bytes(b"")
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
    assert folder.resume_metrics(2, history=[{"step": 1, "loss": 1.0}, {"step": 2, "loss": float("nan")}]) == 0
    lines = folder.metrics_file.read_text().splitlines()
    assert [json.loads(line) for line in lines] == [{"step": 1, "loss": 1.0}, {"step": 2, "loss": None}]


def test_diagnoses_after_the_step_go_and_other_folders_stay(tmp_path):
    folder = RunFolder(tmp_path)
    for name in ("step-000002", "step-000003", "step-000002-copy"):
        (folder.diagnosis / name).mkdir(parents=True)
    folder.resume_metrics(2, history=[])
    assert sorted(path.name for path in folder.diagnosis.iterdir()) == ["step-000002", "step-000002-copy"]


def test_a_damaged_line_of_metrics_is_named(tmp_path):
    folder = RunFolder(tmp_path)
    folder.append_metrics([{"step": 1, "loss": 1.0}])
    with folder.metrics_file.open("a") as file:
        file.write('{"step": 2, "lo\n')
    with pytest.raises(ValueError, match=r"metrics\.jsonl is damaged: line 2 is not a JSON object"):
        folder.metrics()


def test_metrics_that_are_damaged_are_restored_from_the_checkpoint(tmp_path):
    folder = RunFolder(tmp_path)
    history = [{"step": step, "epoch": 0.1, "loss": 1.0 / step} for step in (1, 2, 3)]
    folder.append_metrics(history)
    text = folder.metrics_file.read_text()
    for damaged in ("", text[:50], text.replace("0.5", "0.6"), text.replace("{", "}", 1), "\0" * len(text)):
        folder.metrics_file.write_text(damaged)
        assert folder.resume_metrics(3, history) > 0
        assert folder.metrics() == history
    assert folder.resume_metrics(3, history) == 0


def test_a_manifest_that_was_cut_off_is_not_part_of_the_next_one(tmp_path):
    (tmp_path / "checkpoint-3").mkdir()
    (tmp_path / "checkpoint-3" / ".manifest.json-0123abcd.tmp").write_text("{")
    checkpoint = write_checkpoint(tmp_path, 3)
    assert sorted(json.loads((checkpoint / "manifest.json").read_text())["files"]) == sorted(SAVED)


def test_force_refuses_what_it_cannot_remove(tmp_path, recipe):
    folder = RunFolder(tmp_path / "run")
    with folder.locked():
        folder.begin(recipe, resume=False)
    (tmp_path / "elsewhere").mkdir()
    write_checkpoint(tmp_path / "elsewhere", 10)
    folder.checkpoints.rmdir()
    folder.checkpoints.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ValueError, match=r"checkpoints is a link to .*, which --force does not delete; remove it"):
        folder.check(recipe, resume=False, force=True)
    assert checkpoints.newest_first(tmp_path / "elsewhere")


def test_force_does_not_start_while_the_earlier_run_is_there(recipe):
    with tempfile.TemporaryDirectory() as place:
        folder = RunFolder(Path(place) / "run")
        with folder.locked():
            folder.begin(recipe, resume=False)
        write_checkpoint(folder.checkpoints, 10)
        for path in (folder.path, folder.checkpoints, folder.checkpoints / "checkpoint-10"):
            path.chmod(0o555)
        Path(place).chmod(0o755)
        with as_somebody_else(), pytest.raises(ValueError, match=r"checkpoints could not be removed \(Permission"):
            folder.begin(recipe, resume=False)
        for path in (folder.path, folder.checkpoints, folder.checkpoints / "checkpoint-10"):
            path.chmod(0o755)


def test_a_start_that_was_killed_before_the_recipe_was_written_can_be_resumed(tmp_path, recipe):
    folder = RunFolder(tmp_path / "run")
    with folder.locked():
        folder.checkpoints.mkdir()  # as the Trainer does
        (folder.path / ".recipe.yaml-0123abcd.tmp").write_text("na")
        folder.check(recipe, resume=True, force=False)
        (folder.checkpoints / "thesis.txt").write_text("precious")
        with pytest.raises(ValueError, match="holds files that are not of a run"):
            folder.check(recipe, resume=True, force=False)


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
    assert sorted(path.name for path in folder.path.iterdir()) == ["checkpoints", "lock", "recipe.yaml"]


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
    out, said = run.communicate(timeout=600)
    assert out == "None\n", said
