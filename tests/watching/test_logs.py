"""Where the numbers go."""

import json

import pandas as pd
import pytest

import uncollapse as uc
from tests.models.builders import batch, build
from tests.watching.loops import sgd, train
from uncollapse.watching.reading import read


def watched(log, steps=4, every=2, seed=0):
    model = build("gpt2", seed).train()
    optimizer = sgd(model)
    with uc.watch(model, optimizer, every=every, log=log, on_warning=lambda news: None) as watch:
        train(model, optimizer, [batch("gpt2", seed=seed) for seed in range(steps)])
    return watch


def test_a_callable_gets_a_dict_and_the_step():
    seen = {}
    watch = watched(lambda numbers, step: seen.update({step: numbers}))
    assert list(seen) == [2, 4]
    row = watch.heads.query("step == 4 and layer == 3 and head == 2").iloc[0]
    assert seen[4]["watch/layer_03_head_02/logit_max"] == row["logit_max"]
    assert seen[4]["watch/layer_01/residual_ratio"] == watch.layers.query("step == 4")["residual_ratio"].iloc[0]
    assert seen[4]["watch/gradient_norm"] == watch.optimizer.query("step == 4")["gradient_norm"].iloc[0]


def test_a_writer_gets_scalars():
    class Writer:
        def __init__(self):
            self.seen = []

        def add_scalar(self, tag, scalar_value, global_step):
            self.seen.append((tag, global_step))

    writer = Writer()
    watched(writer)
    assert ("watch/layer_01_head_01/gap_mean", 2) in writer.seen


def test_a_file_holds_the_tables(tmp_path):
    path = tmp_path / "watch.jsonl"
    watch = watched(path)
    run = read(path)
    for name in ("heads", "layers", "optimizer"):
        ours, theirs = getattr(watch, name), getattr(run, name)
        columns = sorted(ours.columns)
        pd.testing.assert_frame_equal(theirs[columns], ours[columns], check_dtype=False)
    assert run.updates["step"].tolist() == [1, 2, 3, 4]
    assert run.about["model"] == "GPT2LMHeadModel"
    assert run.cut == 0
    for line in path.read_text().splitlines():
        json.loads(line, parse_constant=pytest.fail)  # NaN is no JSON


def test_a_run_that_goes_on_appends_also_behind_a_line_that_was_cut(tmp_path):
    path = tmp_path / "watch.jsonl"
    watched(path, steps=6)
    whole = path.read_text()
    path.write_text(whole[:-40])  # killed while writing the measurement of update 6
    watch = watched(path, steps=4, seed=1)  # again from the start
    run = read(path)
    assert run.cut == 1
    assert sorted(set(run.heads["step"])) == [2, 4]
    assert run.heads["logit_max"].tolist() == pytest.approx(watch.heads["logit_max"].tolist())


def test_what_is_no_log_of_a_watch(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"loss": 3}\n')
    with pytest.raises(ValueError, match="is no file that"):
        read(path)
    path.write_text('{"watch": 99}\n')
    with pytest.raises(ValueError, match="has format 99"):
        read(path)
    path.write_text('{"watch": 1}\n')
    with pytest.raises(ValueError, match="holds no measurement"):
        read(path)
