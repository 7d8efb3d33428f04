"""Processes of one run that were started differently are refused at the start, all with the same sentence."""

import json
import os
import subprocess
import sys

import pytest

from tests.attack.small_runs import SMALL

# Each process trains in a folder of its own, which it reaches by the same path. So different data, or another
# checkpoint, can lie behind the same options, as on machines that do not share a disk.
HERE = "/proc/self/cwd"
CASES = {  # what the second process does differently, and the words that must name it
    "learning_rate": ({"learning_rate": 0.1}, "learning_rate is 0.002 in process 0 and 0.1 in process 1"),
    "rule": ({"rule": "realformer"}, "rule is self_attention in process 0 and realformer in process 1"),
    "seed": ({"seed": 1}, "seed is 0 in process 0 and 1 in process 1"),
    "steps": ({"steps": 6}, "steps is 4 in process 0 and 6 in process 1"),
    "out": ({"out": f"{HERE}/other"}, f"out is {HERE}/run in process 0 and {HERE}/other in process 1"),
    "resume": ({"resume": True}, "resume is False in process 0 and True in process 1"),
    "data": ({"text": "other"}, "data_sha256 is "),
    "a checkpoint of another run": ({"checkpoint": "other"}, "the manifest of "),
    "no checkpoint": ({"checkpoint": None}, "the manifest of "),
}
DRIVER = """
import json, os, shutil, sys
from pathlib import Path
import uncollapse as uc

settings = json.loads(Path(sys.argv[1]).read_text())
rank = int(os.environ["RANK"])
os.chdir(Path(sys.argv[1]).parent / f"rank-{rank}")
said = {}
for name, (different, _) in settings["cases"].items():
    mine = different if rank else {}
    Path("text.txt").write_text(settings["texts"][mine.pop("text", "usual")])
    shutil.rmtree("run", ignore_errors=True)
    checkpoint = mine.pop("checkpoint", "usual")
    if "checkpoint" in name and checkpoint:
        shutil.copytree(settings["runs"][checkpoint], "run")
    options = {"out": settings["here"] + "/run", "resume": "checkpoint" in name} | mine
    keys = settings["keys"] | {k: v for k, v in options.items() if k not in ("out", "resume")}
    try:
        uc.train("quickstart", options["out"], resume=options["resume"], progress=False, **keys)
    except (ValueError, OSError) as error:
        said[name] = str(error)
Path("said.json").write_text(json.dumps(said))
"""


@pytest.mark.skipif(not os.path.exists(HERE), reason="needs /proc, by which two processes have the same path")
def test_processes_that_were_started_differently_are_refused_in_the_same_sentence(tmp_path, full, promise):
    import uncollapse as uc

    texts = {"usual": "The quick brown fox jumps over the lazy dog. " * 300, "other": "Sphinx of black quartz. " * 600}
    keys = SMALL | {"data": f"{HERE}/text.txt", "diagnose_every": 0}
    cases = CASES if full else {name: CASES[name] for name in ("learning_rate", "out", "data")}
    runs = {}
    if full:
        (tmp_path / "text.txt").write_text(texts["usual"])
        for name, seed in (("usual", 0), ("other", 1)):
            made = keys | {"data": str(tmp_path / "text.txt"), "seed": seed, "steps": 2}
            runs[name] = str(uc.train("quickstart", tmp_path / name, progress=False, **made).folder)
            recipe = tmp_path / name / "recipe.yaml"  # of a run with the options that are given below
            recipe.write_text(uc.Recipe.find(tmp_path / name).changed(seed=0, steps=4, data=keys["data"]).to_yaml())
    for rank in (0, 1):
        (tmp_path / f"rank-{rank}").mkdir()
    settings = {"cases": cases, "texts": texts, "runs": runs, "keys": keys, "here": HERE}
    (tmp_path / "settings.json").write_text(json.dumps(settings))
    (tmp_path / "driver.py").write_text(DRIVER)
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    launched = subprocess.run(
        [*launcher, str(tmp_path / "driver.py"), str(tmp_path / "settings.json")],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=1_800,
        check=False,
    )
    assert launched.returncode == 0, launched.stderr[-3000:]
    first, second = (json.loads((tmp_path / f"rank-{rank}" / "said.json").read_text()) for rank in (0, 1))
    kept = 0
    for name, (_, words) in cases.items():
        told = first.get(name, "nothing")
        if told == second.get(name) and words in told and "start all of them with the same options" in told:
            kept += 1
        else:
            print(f"{name}: {told} | {second.get(name)}")
    promise("differences between processes that were refused at the start", tried=len(cases), kept=kept)
