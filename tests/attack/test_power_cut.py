"""What a run has sealed or finished is still there after a power cut."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.attack.forked import runner
from tests.attack.small_runs import SMALL, same_outcome
from uncollapse import files
from uncollapse.training import checkpoints

RECORDED = """
import json, os, sys
from pathlib import Path
from uncollapse.cli import main

synced, renamed, problems = {}, [], []
sync, replace = os.fsync, os.replace

def state(path):
    if path.is_dir():
        return sorted(inner.name for inner in path.iterdir())
    return [path.stat().st_size, path.stat().st_mtime_ns]

def fsync(descriptor):
    sync(descriptor)
    path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
    synced[path.stat().st_ino] = state(path)

def expect(what, path):
    names = synced.get(path.parent.stat().st_ino)
    if path.is_file() and synced.get(path.stat().st_ino) != state(path):
        problems.append(f"{what}: the content of {path} may be lost")
    if names is None or path.name not in names:
        problems.append(f"{what}: the name of {path} may be lost")

def replacing(source, target):
    source, target = Path(source), Path(target)
    if target.name == "manifest.json":  # what it promises is on the disk before it is there
        for path in target.parent.rglob("*"):
            if path != source:
                expect(target.parent.name, path)
    if target.name == "status.json" and json.loads(source.read_text())["status"] == "finished":
        for path in [target.parent / "metrics.jsonl", target.parent / "recipe.yaml", *target.parent.glob("model/*")]:
            expect("finished", path)
    renamed.append(target)
    replace(source, target)

os.fsync, os.replace = fsync, replacing
code = main(sys.argv[2:])
for target in renamed:
    if target.exists():
        expect("the end", target)
        expect("the end", target.parent)
names = [target.name for target in renamed]
Path(sys.argv[1]).write_text(json.dumps({"code": code, "problems": problems, "renamed": names}))
"""


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs /proc to know what is synced")
def test_everything_is_synced_before_the_manifest_or_the_status_that_promises_it(tmp_path, promise):
    options = [f"--{name}={value}" for name, value in SMALL.items()]
    arguments = ["train", "quickstart", f"--out={tmp_path / 'run'}", *options]
    command = [sys.executable, "-c", RECORDED, str(tmp_path / "said"), *arguments]
    own_cache = os.environ | {"UNCOLLAPSE_CACHE": str(tmp_path / "cache")}  # what was there before is not synced again
    subprocess.run(command, env=own_cache, check=True, timeout=600)
    said = json.loads((tmp_path / "said").read_text())
    assert said["code"] == 0
    assert said["renamed"].count("manifest.json") >= 3  # two checkpoints and the model
    print("\n".join(said["problems"]))
    promise("renames before which all that they promise was synced", tried=len(said["renamed"]),
            kept=len(said["renamed"]) - len(said["problems"]))  # fmt: skip


def has_loop_devices():
    return os.geteuid() == 0 and Path("/dev/loop-control").exists() and shutil.which("mkfs.ext4") is not None


@contextmanager
def mounted(image, at):
    at.mkdir(exist_ok=True)
    subprocess.run(["mount", "-o", "loop", str(image), str(at)], check=True)
    try:
        yield at
    finally:
        subprocess.run(["umount", str(at)], check=True)


def copied(image, to):
    """The image as the disk has it now; copied until two copies agree, as the kernel may write meanwhile."""
    while True:
        shutil.copyfile(image, to)
        if files.sha256(to) == files.sha256(image):
            return to


def last_logged(folder):
    file = folder / "metrics.jsonl"
    lines = file.read_text().split("\n")[:-1] if file.exists() else []
    return json.loads(lines[-1])["step"] if lines else 0


def test_after_a_power_cut_the_last_sealed_checkpoint_or_the_finished_model_is_there(tmp_path, full, promise):
    if not full:
        pytest.skip("takes minutes; part of make attack")
    if not has_loop_devices():
        pytest.skip("needs root, loop devices and mkfs.ext4")
    keys = SMALL | {"steps": 40, "diagnose_every": 10}
    image = tmp_path / "disk.img"
    with image.open("wb") as file:
        file.truncate(64 << 20)
    subprocess.run(["mkfs.ext4", "-q", str(image)], check=True)
    tried = kept = 0
    with runner() as forked, mounted(image, tmp_path / "disk") as disk:
        whole = tmp_path / "whole"
        assert forked.train(whole, **keys)["exit"] == 0
        folder = disk / "run"
        training = forked.start(folder, **keys)
        copies = []
        while training.running():
            time.sleep(0.02)
            if last_logged(folder) < 3 * len(copies):
                continue
            with suppress(ProcessLookupError):  # it may end at any moment
                os.kill(training.pid, signal.SIGSTOP)
                # The next step is logged only after the checkpoint of the one before is sealed.
                sealed = max(range(2, last_logged(folder), 2), default=0)
                copies.append((copied(image, tmp_path / f"cut-{len(copies)}.img"), sealed, False))
                os.kill(training.pid, signal.SIGCONT)
        assert training.wait()["exit"] == 0
        copies.append((copied(image, tmp_path / "cut-finished.img"), 40, True))
        for copy, sealed, done in copies:
            with mounted(copy, tmp_path / "after") as after:
                good, _ = checkpoints.last_good(after / "run" / "checkpoints")
                found = checkpoints.step_of(good) if good else 0
                ended = forked.train(after / "run", "--resume", **keys)
                whole_again = ended["exit"] == 0 and same_outcome(after / "run", whole)
                intact = not done or "going on" not in ended["said"]
            tried += 1
            if found >= sealed and whole_again and intact:
                kept += 1
            else:
                print(f"sealed {sealed}, found {found}, finished {done}: {ended['said']}")
            copy.unlink()
    promise("power cuts after which --resume ends with the same bits, from the last sealed checkpoint",
            tried=tried, kept=kept)  # fmt: skip
