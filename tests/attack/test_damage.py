"""Whatever happens to a file of a run is named when it is used, or put right."""

import shutil

import pytest

from tests.attack.small_runs import SMALL, is_finished, same_outcome
from uncollapse.diagnosis import Diagnosis
from uncollapse.training import checkpoints

DAMAGES = ("removed", "emptied", "cut in half", "one bit flipped", "filled with zeros")
NOT_PART = ("lock", "tensorboard")  # of what a run holds


def damage(file, how):
    content = bytearray(file.read_bytes())
    if how == "removed":
        file.unlink()
        return
    if how == "emptied":
        content = b""
    elif how == "cut in half":
        content = content[: len(content) // 2]
    elif how == "one bit flipped":
        content[len(content) // 2] ^= 1
    else:
        content = bytes(len(content))
    file.write_bytes(content)


def parts(run):
    found = (path.relative_to(run) for path in sorted(run.rglob("*")) if path.is_file())
    return [path for path in found if path.parts[0] not in NOT_PART]


def chosen(files, full, count):
    """Each file with each damage, or `count` of the pairs, evenly spaced."""
    pairs = [(file, how) for file in files for how in DAMAGES]
    return pairs if full else pairs[:: len(pairs) // count + 1]


@pytest.fixture
def finished(undisturbed):
    return undisturbed[0]


def test_damage_of_a_finished_run_is_named_and_put_right_or_refused(forked, finished, tmp_path, full, promise):
    files = [file for file in parts(finished) if file.parts[0] not in ("checkpoints", "diagnosis")]
    tried = kept = 0
    for file, how in chosen(files, full, 2):
        run = tmp_path / "run"
        shutil.copytree(finished, run)
        damage(run / file, how)
        ended = forked.train(run, "--resume", **SMALL)
        named = str(run / file.parts[0]) in ended["said"]
        put_right = ended["exit"] == 0 and same_outcome(run, finished)
        refused = ended["exit"] == 2 and "Traceback" not in ended["said"]
        # A status that can still be read but no longer says "finished" only costs the end of the run once more.
        silent = file.name == "status.json" and put_right
        tried += 1
        if (named and (put_right or refused)) or silent:
            kept += 1
        else:
            print(f"{file} {how}: {ended['exit']} {ended['said']}")
        shutil.rmtree(run)
    promise("damaged files of a finished run that --resume named, or put right", tried=tried, kept=kept)


def test_a_damaged_checkpoint_is_named_and_the_one_before_used(forked, finished, tmp_path, full, promise):
    newest = checkpoints.newest_first(finished / "checkpoints")[0].relative_to(finished)
    tried = kept = 0
    for file, how in chosen([file for file in parts(finished) if newest in file.parents], full, 2):
        run = tmp_path / "run"
        shutil.copytree(finished, run)
        shutil.rmtree(run / "model")
        (run / "status.json").unlink()
        damage(run / file, how)
        ended = forked.train(run, "--resume", **SMALL)
        tried += 1
        named = f"{run / newest} is not used: " in ended["said"] and "going on from step 2" in ended["said"]
        if named and is_finished(run) and same_outcome(run, finished):
            kept += 1
        else:
            print(f"{file} {how}: {ended['exit']} {ended['said']}")
        shutil.rmtree(run)
    promise("damaged files of a checkpoint that were named, the one before used", tried=tried, kept=kept)


def test_damaged_metrics_of_an_unfinished_run_are_restored(forked, finished, tmp_path, full, promise):
    content = (finished / "metrics.jsonl").read_bytes()
    flips = range(0, len(content), 97 if full else len(content) // 3 + 1)
    tried = kept = 0
    for at in flips:
        run = tmp_path / "run"
        shutil.copytree(finished, run)
        shutil.rmtree(run / "model")
        (run / "status.json").unlink()
        damaged = bytearray(content)
        damaged[at] ^= 4  # no digit becomes another one of the same value, no space another space
        (run / "metrics.jsonl").write_bytes(damaged)
        ended = forked.train(run, "--resume", **SMALL)
        tried += 1
        if f"{run / 'metrics.jsonl'} was damaged" in ended["said"] and same_outcome(run, finished):
            kept += 1
        else:
            print(f"byte {at}: {ended['exit']} {ended['said']}")
        shutil.rmtree(run)
    promise("bytes flipped in metrics.jsonl: named, and restored from the checkpoint", tried=tried, kept=kept)


def test_a_damaged_diagnosis_is_named(finished, tmp_path, full, promise):
    folder = finished / "diagnosis" / "step-000004"
    copy = tmp_path / "diagnosis"
    known = Diagnosis.load(folder)
    tried = kept = 0
    for name in ("diagnosis.json", "diagnosis.npz"):
        content = (folder / name).read_bytes()
        for at in range(0, len(content), 7 if full else 301):
            shutil.copytree(folder, copy)
            damaged = bytearray(content)
            damaged[at] ^= 1
            (copy / name).write_bytes(damaged)
            tried += 1
            try:
                loaded = Diagnosis.load(copy)
            except (ValueError, OSError) as error:
                kept += str(copy) in str(error)
            else:  # a time or a version in the headers of a zip file is none of its content
                kept += all(loaded.tables[name].equals(table) for name, table in known.tables.items())
            shutil.rmtree(copy)
    promise("bytes flipped in a saved diagnosis: named, or without an effect", tried=tried, kept=kept)
