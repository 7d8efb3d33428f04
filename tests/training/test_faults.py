"""Whatever happens to a run, what it wrote stays whole, and it goes on as if nothing had happened."""

import json
import shutil
import signal

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import uncollapse as uc
from tests.training.tiny import IMAGES, KEYS, start
from uncollapse.cli import main
from uncollapse.training import checkpoints
from uncollapse.training.run_folder import RunFolder

STEPS = 24


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    run = uc.train("quickstart", tmp_path_factory.mktemp("undisturbed") / "run", progress=False, steps=STEPS, **KEYS)
    assert run.status == "finished"
    return run.folder


def numbers(folder):
    """The metrics without what depends on the clock."""
    clock = ("seconds", "tokens_per_second")
    return [{k: v for k, v in line.items() if k not in clock} for line in RunFolder(folder).metrics()]


def same_weights(a, b):
    ours, theirs = (load_file(folder / "model" / "model.safetensors") for folder in (a, b))
    return ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)


def model_files(folder):
    return {path.name: path.read_bytes() for path in (folder / "model").iterdir()}


def last_step(folder):
    lines = RunFolder(folder).metrics()
    return lines[-1]["step"] if lines else 0


PARTS = ("model.safetensors", "optimizer.pt", "manifest.json")


@pytest.mark.parametrize(
    ("moment", "call", "there"),  # of the third checkpoint
    [
        ("in a step", 11, PARTS),
        ("between the weights and the optimizer", 3, PARTS[:1]),
        ("before the manifest", 3, PARTS[:2]),
        ("before old checkpoints go", 3, PARTS),
    ],
)
def test_after_kill_9_the_run_goes_on_to_the_same_bits(moment, call, there, undisturbed, tmp_path):
    run = tmp_path / "run"
    process = start(run, signalled=("SIGKILL", moment, call), steps=STEPS)
    _, said = process.communicate(timeout=600)
    assert process.returncode == -signal.SIGKILL, said
    assert tuple(part for part in PARTS if (run / "checkpoints" / "checkpoint-9" / part).exists()) == there
    assert not (run / "model").exists()

    again = uc.train("quickstart", run, resume=True, progress=False, steps=STEPS, **KEYS)
    assert again.status == "finished"
    assert same_weights(run, undisturbed)
    assert numbers(run) == numbers(undisturbed)


def test_sigterm_finishes_the_step_saves_and_the_run_goes_on(undisturbed, tmp_path):
    run = tmp_path / "run"
    process = start(run, signalled=("SIGTERM", "in a step", 5), steps=STEPS)
    _, said = process.communicate(timeout=600)
    assert process.returncode == 128 + signal.SIGTERM, said
    assert "stopped by SIGTERM after step 5" in said
    assert "go on with --resume" in said
    assert "Traceback" not in said
    newest = checkpoints.newest_first(run / "checkpoints")[0]
    assert checkpoints.fault(newest) is None
    assert checkpoints.step_of(newest) == 5 == last_step(run) == RunFolder(run).status()["step"]
    assert RunFolder(run).status()["status"] == "stopped"
    uc.train("quickstart", run, resume=True, progress=False, steps=STEPS, **KEYS)
    assert same_weights(run, undisturbed)


def test_a_terminal_that_goes_away_stops_the_run_as_sigterm_does(tmp_path):
    def hang_up(step, loss):
        if step == 3:
            signal.raise_signal(signal.SIGHUP)

    run = tmp_path / "run"
    ended = uc.train("quickstart", run, progress=False, steps=9, on_step=hang_up, **KEYS)
    assert ended.status == "stopped" == RunFolder(run).status()["status"]
    assert ended.reason.startswith("stopped by SIGHUP after step 3")
    assert checkpoints.last_good(run / "checkpoints") == (run / "checkpoints" / "checkpoint-3", [])


def test_an_error_is_recorded_in_the_status(tmp_path):
    def fail(step, loss):
        if step == 2:
            raise ZeroDivisionError("no reason")

    run = tmp_path / "run"
    with pytest.raises(ZeroDivisionError):
        uc.train("quickstart", run, progress=False, steps=9, on_step=fail, **KEYS)
    status = RunFolder(run).status()
    assert (status["status"], status["step"], status["reason"]) == ("failed", 2, "no reason")


def test_ctrl_c_does_the_same_and_gives_the_signal_back(tmp_path):
    before = signal.getsignal(signal.SIGINT)

    def press(step, loss):
        if step == 3:
            signal.raise_signal(signal.SIGINT)

    ended = uc.train("quickstart", tmp_path / "run", progress=False, steps=9, on_step=press, **KEYS)
    assert ended.status == "stopped"
    assert ended.reason.startswith("stopped by SIGINT after step 3")
    assert signal.getsignal(signal.SIGINT) is before


@pytest.fixture
def stopped_at_6(undisturbed, tmp_path):
    """A folder as kill -9 right after step 7 leaves it."""
    run = tmp_path / "run"
    uc.train("quickstart", run, progress=False, steps=6, **KEYS | {"schedule": "constant"})
    for part in ("model", "status.json"):
        (run / part).rename(tmp_path / part)
    return run


@pytest.mark.parametrize("harm", ["truncated", "corrupted"])
def test_a_harmed_newest_checkpoint_is_named_and_the_one_before_used(harm, stopped_at_6, capsys):
    file = stopped_at_6 / "checkpoints" / "checkpoint-6" / "optimizer.pt"
    content = file.read_bytes()
    file.write_bytes(content[: len(content) // 2] if harm == "truncated" else content[:-100] + bytes(100))
    ended = uc.train("quickstart", stopped_at_6, resume=True, steps=6, **KEYS | {"schedule": "constant"})
    assert ended.status == "finished"
    said = capsys.readouterr().err
    assert "checkpoint-6 is not used: " in said
    assert "going on from step 3" in said


def test_a_full_disk_gets_a_sentence_and_leaves_the_earlier_checkpoints(tmp_path):
    run = tmp_path / "run"
    first = uc.train("quickstart", run, progress=False, steps=3, **KEYS | {"schedule": "constant"})
    assert first.status == "finished"
    largest = max(file.stat().st_size for file in (run / "checkpoints" / "checkpoint-3").iterdir())
    process = start(run, "--resume", largest_file=largest - 1, steps=9, schedule="constant")
    _, said = process.communicate(timeout=600)
    assert process.returncode == 2, said
    assert "the checkpoint of step 6 could not be written" in said
    assert "earlier checkpoints are intact: make room and run again with --resume" in said
    assert "Traceback" not in said
    assert RunFolder(run).status()["status"] == "failed"
    assert [c.name for c in checkpoints.newest_first(run / "checkpoints")] == ["checkpoint-3"]
    assert checkpoints.fault(run / "checkpoints" / "checkpoint-3") is None


def test_a_second_run_into_the_folder_is_refused(tmp_path):
    folder = RunFolder(tmp_path / "run")
    with folder.locked(), pytest.raises(ValueError, match="another process is training in"):
        uc.train("quickstart", folder.path, progress=False, steps=2, **KEYS)


def test_resume_with_nothing_to_resume_starts(tmp_path):
    ended = uc.train("quickstart", tmp_path / "run", resume=True, progress=False, steps=2, **KEYS)
    assert ended.status == "finished"
    assert ended.metrics[0]["step"] == 1


def test_an_earlier_run_is_not_overwritten_unasked(stopped_at_6):
    with pytest.raises(ValueError, match="holds a run already; pass --resume to go on with it, --force to replace it"):
        uc.train("quickstart", stopped_at_6, progress=False, steps=6, **KEYS)
    ended = uc.train("quickstart", stopped_at_6, force=True, progress=False, steps=2, **KEYS)
    assert [line["step"] for line in ended.metrics] == [1, 2, 2]


def test_a_start_that_fails_leaves_everything_as_it_was(stopped_at_6, tmp_path):
    before = (stopped_at_6 / "metrics.jsonl").read_text()
    for folder in (stopped_at_6, tmp_path / "new"):
        with pytest.raises(ValueError, match=r"there is no file or folder absent\.txt"):
            uc.train("quickstart", folder, force=True, progress=False, steps=6, **KEYS | {"data": "absent.txt"})
    assert (stopped_at_6 / "metrics.jsonl").read_text() == before
    assert uc.train("quickstart", tmp_path / "new", progress=False, steps=1, **KEYS).status == "finished"


def test_a_folder_with_other_files_is_left_alone(tmp_path):
    (tmp_path / "thesis.txt").write_text("precious")
    with pytest.raises(ValueError, match="holds files that are not of a run"):
        uc.train("quickstart", tmp_path, force=True, progress=False, steps=2, **KEYS)
    assert (tmp_path / "thesis.txt").read_text() == "precious"


def test_resuming_with_another_rate_is_refused(stopped_at_6):
    with pytest.raises(
        ValueError, match=r"was begun with learning_rate = 0.002, not 0.1; resume it with the same keys"
    ):
        uc.train("quickstart", stopped_at_6, resume=True, steps=6, learning_rate=0.1, **KEYS | {"schedule": "constant"})


def test_resuming_after_the_data_has_changed_is_refused(tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("The quick brown fox jumps over the lazy dog. " * 400)
    keys = KEYS | {"schedule": "constant", "data": str(text), "rule": "self_attention"}
    uc.train("quickstart", tmp_path / "run", progress=False, steps=3, **keys)
    text.write_text("Sphinx of black quartz, judge my vow. " * 400)
    with pytest.raises(ValueError, match=r"the data has changed since .*checkpoint-3 was written; bring it back"):
        uc.train("quickstart", tmp_path / "run", resume=True, progress=False, steps=6, **keys)
    assert last_step(tmp_path / "run") == 3


def test_resuming_after_the_images_have_changed_is_refused(tmp_path):
    generator = np.random.default_rng(0)
    images = generator.integers(0, 256, (200, 8, 8, 1), dtype=np.uint8)
    labels = np.arange(200) % 10
    np.savez(tmp_path / "train.npz", images=images, labels=labels)
    keys = IMAGES | {"data": str(tmp_path), "schedule": "constant", "eval_examples": 20}
    uc.train(keys, tmp_path / "run", progress=False, steps=2)
    images[0, 0, 0, 0] ^= 1
    np.savez(tmp_path / "train.npz", images=images, labels=labels)
    with pytest.raises(ValueError, match="the data has changed since"):
        uc.train(keys, tmp_path / "run", resume=True, progress=False, steps=4)


@pytest.mark.parametrize("family", ["gpt2", "llama", "post-norm"])
def test_a_run_that_is_killed_after_its_last_checkpoint_leaves_the_same_model_folder(family, tmp_path):
    keys = KEYS | {"family": family, "rule": "hopfield", "alpha_warmup": 8, "eval_every": 2}
    whole = uc.train("quickstart", tmp_path / "whole", progress=False, steps=2, **keys).folder
    run = tmp_path / "run"
    shutil.copytree(whole, run)
    shutil.rmtree(run / "model")
    (run / "status.json").unlink()
    (run / ".model").mkdir()
    (run / ".model" / "half").touch()
    uc.train("quickstart", run, resume=True, progress=False, steps=2, **keys)
    assert model_files(run) == model_files(whole)
    assert numbers(run) == numbers(whole)


def test_the_end_of_a_run_without_evaluations_is_logged_once(tmp_path):
    keys = {name: value for name, value in KEYS.items() if name != "eval_every"}
    whole = uc.train("quickstart", tmp_path / "whole", progress=False, steps=2, **keys).folder
    run = tmp_path / "run"
    shutil.copytree(whole, run)
    shutil.rmtree(run / "model")
    (run / "status.json").unlink()
    uc.train("quickstart", run, resume=True, progress=False, steps=2, **keys)
    assert numbers(run) == numbers(whole)


def test_a_finished_run_that_was_damaged_is_named_and_restored(undisturbed, tmp_path, capsys):
    run = tmp_path / "run"
    shutil.copytree(undisturbed, run)
    keys = {"resume": True, "progress": False, "steps": STEPS, **KEYS}
    for file in ("model/model.safetensors", "metrics.jsonl"):
        content = bytearray((run / file).read_bytes())
        content[len(content) // 2] ^= 1
        (run / file).write_bytes(content)
        if file.startswith("model"):
            with pytest.raises(ValueError, match=r"model is damaged: the content of model\.safetensors has changed"):
                _ = uc.training.Run(run, "finished", "").model
        uc.train("quickstart", run, **keys)
        assert str(run / file.split("/")[0]) in capsys.readouterr().err
        assert model_files(run) == model_files(undisturbed)
        assert numbers(run) == numbers(undisturbed)
    shutil.rmtree(run / "checkpoints")
    shutil.rmtree(run / "model")
    with pytest.raises(ValueError, match="no checkpoint is left to restore it from; train it again with --force"):
        uc.train("quickstart", run, **keys)


def test_a_damaged_model_of_a_run_is_not_used(undisturbed, tmp_path, capsys):
    run = shutil.copytree(undisturbed, tmp_path / "run")
    weights = run / "model" / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1  # the last weight becomes another number
    weights.write_bytes(content)
    with pytest.raises(ValueError, match=r"model is damaged: the content of model.safetensors has changed; write it"):
        uc.from_pretrained(run / "model")
    assert main(["diagnose", str(run)]) == 2
    assert main(["train", "quickstart", f"--out={tmp_path / 'new'}", f"--model={run}"]) == 2
    assert capsys.readouterr().err.count("model is damaged: the content of model.safetensors has changed") == 2
    (run / "model" / "manifest.json").unlink()
    assert uc.from_pretrained(run / "model")


def test_images_with_augmentation_and_drop_path_go_on_to_the_same_bits(tmp_path):
    keys = IMAGES | {"crop": True, "mixup": 0.8, "cutmix": 1.0, "drop_path": 0.3, "dropout": 0.1, "save_every": 3}
    keys |= {"schedule": "constant", "rule": "hopfield", "erasing": 0.25, "randaugment": "2,9"}
    uc.train(keys, tmp_path / "whole", progress=False, steps=6)
    uc.train(keys, tmp_path / "parts", progress=False, steps=3)
    uc.train(keys, tmp_path / "parts", resume=True, progress=False, steps=6)
    assert same_weights(tmp_path / "whole", tmp_path / "parts")


def test_a_finished_run_is_left_as_it_is(undisturbed):
    before = (undisturbed / "metrics.jsonl").read_text()
    assert uc.train("quickstart", undisturbed, resume=True, progress=False, steps=STEPS, **KEYS).status == "finished"
    assert (undisturbed / "metrics.jsonl").read_text() == before


@pytest.mark.parametrize(
    ("save_every", "written", "kept"),
    [(1, [2, 1], "the last good checkpoint is {}"), (3, [], "no checkpoint had been written")],
)
def test_a_loss_that_is_not_finite_stops_the_run_and_keeps_the_checkpoints_before(save_every, written, kept, tmp_path):
    run = tmp_path / "run"
    keys = KEYS | {"schedule": "constant", "warmup_steps": 4, "clip": 0.0, "save_every": save_every}
    # The rate is 1e-6 in the first update and 2.5e29 in the second, so the third loss is the first that overflows.
    ended = uc.train("quickstart", run, progress=False, steps=60, learning_rate=1e30, lowest_rate=1e-6, **keys)
    assert ended.status == "diverged"
    assert ended.reason.startswith("the loss was nan at step 3, so the run was stopped; ")
    assert ended.reason.endswith(f"; {kept.format(run / 'checkpoints' / 'checkpoint-2')}.")
    assert last_step(run) == 3
    assert json.loads((run / "status.json").read_text())["status"] == "diverged"
    found = checkpoints.newest_first(run / "checkpoints")
    assert [checkpoints.step_of(checkpoint) for checkpoint in found] == written
    for checkpoint in found:
        weights = load_file(checkpoint / "model.safetensors")
        assert all(torch.isfinite(tensor).all() for tensor in weights.values())


def test_an_exploding_loss_stops_the_run(tmp_path):
    keys = KEYS | {"schedule": "constant", "warmup_steps": 0, "clip": 0.0, "weight_decay": 0.0}
    ended = uc.train("quickstart", tmp_path / "run", progress=False, steps=60, learning_rate=30.0, **keys)
    assert ended.status == "diverged"
    assert "times the 5.704 of guessing" in ended.reason  # ln 300
