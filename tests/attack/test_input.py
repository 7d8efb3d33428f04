"""Recipes, run folders and data of others: one sentence and exit code 2, and nothing that a terminal would obey."""

import contextlib
import io
import json
import resource
import zipfile
from pathlib import Path

import numpy as np
import pytest
import transformers as hf
import yaml

import uncollapse as uc
from tests.training.compare.run_folders import RECIPE, tiny_diagnosis, write_run
from uncollapse.cli import main
from uncollapse.data.batches import load_batches
from uncollapse.data.images import load_images

ESCAPE = "\x1b]0;title\x07\x1b[2J\x9b31m\u202e"  # changes the title, clears the screen, turns red, writes backwards


def command(*arguments):
    """Exit code, what was printed and what was said on stderr."""
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as said:
        code = main([str(argument) for argument in arguments])
    return code, out.getvalue(), said.getvalue()


def one_sentence(name, *arguments):
    """Whether a command ends with exit code 2 and one line that has `name` in it."""
    try:
        code, _, said = command(*arguments)
    except Exception as error:
        print(f"{arguments}: {error!r:.300}")
        return False
    good = code == 2 and said.count("\n") == 1 and name in said and "Traceback" not in said and len(said) < 2_000
    if not good:
        print(f"{arguments}: exit code {code}, {said!r:.300}")
    return good


@contextlib.contextmanager
def limited(what, most):
    """With a limit of the system; with RLIMIT_FSIZE, writing fails as on a full disk, but for the error's number."""
    soft, hard = resource.getrlimit(what)
    resource.setrlimit(what, (most, hard))
    try:
        yield
    finally:
        resource.setrlimit(what, (soft, hard))


def nested(depth):
    return "[" * depth + "]" * depth


LAUGHS = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{new}: &{new} [{', '.join([f'*{old}'] * 9)}]\n" for old, new in zip("abcdefgh", "bcdefghi", strict=True)
)
RECIPES = {  # the text of a recipe, and what the sentence has to name
    "key 1": ("1: 2", "the key 1"),
    "key null": ("null: 2", "the key None"),
    "key true": ("true: 2", "the key True"),
    "key of a date": ("2001-01-01: 2", "the key"),
    "key of a list": ("? [a]\n: 2", "recipe.yaml"),
    "deep lists": (f"steps: {nested(5_000)}", "recipe.yaml"),
    "deep keys": ("".join(" " * n + "a:\n" for n in range(2_000)), "recipe.yaml"),
    "billion laughs": (LAUGHS, "recipe.yaml"),
    "a long number": (f"steps: {'9' * 10_000}", "recipe.yaml"),
    "a large number": (f"steps: {'9' * 400}", "steps"),
    "a large float": (f"learning_rate: {'9' * 400}", "learning_rate"),
    "no date": ("data: 2001-99-99", "recipe.yaml"),
    "no timestamp": ("data: !!timestamp x", "recipe.yaml"),
    "no truth": ("crop: !!bool x", "recipe.yaml"),
    "no integer": ('steps: !!int ""', "recipe.yaml"),
    "an object": ("data: !!python/object/apply:os.system [true]", "recipe.yaml"),
    "bytes": ("data: !!binary aGk=", "data"),
    "a list": ("data: [a, b]", "data"),
    "half a character": (r'data: "\ud800"', "data"),
    "no keys": ("just text", "key: value"),
    "nothing": ("", "key: value"),
    "an unknown key": ("stepz: 3", "did you mean steps"),
    "name above": ("name: ../../x", "name"),
    "name absolute": ("name: /tmp/x", "name"),
    "name with a backslash": ('name: "a\\\\b"', "name"),
    "name with escapes": ('name: "\\e[2Jx"', "name"),
    "name with a line end": ('name: "a\\nb"', "name"),
    "name with zero": ('name: "a\\0b"', "name"),
    "kv_heads 3 of 4": ("family: llama\nheads: 4\nkv_heads: 3", "kv_heads"),
    "heads 3 of 128": ("heads: 3\nwidth: 128", "heads"),
    "a huge vocabulary": ("vocab_size: 10000000000", "vocab_size must be at most 10,000,000"),
    "a huge width": ("width: 10000000000000", "width"),
    "a huge seed": ("seed: 4294967296", "seed"),
    "a negative seed": ("seed: -1", "seed"),
    "a negative warm-up": ("warmup_steps: -1", "warmup_steps"),
    "negative diagnoses": ("diagnose_every: -1", "diagnose_every"),
    "decay nan": ("weight_decay: .nan", "weight_decay"),
    "clip infinite": ("clip: .inf", "clip"),
    "a negative kappa": ("kappa_mean: -1.0", "kappa_mean"),
    "text for a number": ("steps: many", "steps"),
    "true for a number": ("steps: true", "steps"),
    "a long text for a number": (f"steps: {'x' * 100_000}", "steps"),
}


def test_recipes_are_refused_in_one_sentence(tmp_path, promise, monkeypatch):
    monkeypatch.chdir(tmp_path)
    kept = 0
    for text, named in RECIPES.values():
        alone = ":" not in text or text.startswith("steps")
        (tmp_path / "recipe.yaml").write_text(text if alone else f"steps: 3\n{text}")
        kept += one_sentence(named, "train", "recipe.yaml")
    (tmp_path / "recipe.yaml").write_bytes(b"steps: 3\nname: \xff\n")
    kept += one_sentence("recipe.yaml", "train", "recipe.yaml")
    assert [path.name for path in tmp_path.iterdir()] == ["recipe.yaml"]  # no run was begun
    promise("hostile recipes refused in one sentence", tried=len(RECIPES) + 1, kept=kept)


def test_memory_that_is_not_there_is_one_sentence(tmp_path):
    taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    with limited(resource.RLIMIT_AS, taken + 2**30):
        assert one_sentence("not enough memory", "train", "quickstart", "--out", tmp_path, "--width", 2**16)


FILES = {  # of a run: file, content, and what the sentence has to name
    "status cut off": ("status.json", '{"status": ', "status.json"),
    "status empty": ("status.json", "", "status.json"),
    "status a list": ("status.json", "[1]", "status.json"),
    "status deep": ("status.json", nested(100_000), "status.json"),
    "status a long number": ("status.json", '{"step": ' + "9" * 5_000 + "}", "status.json"),
    "status not UTF-8": ("status.json", b'{"status": "\xff"}', "status.json"),
    "metrics cut in the middle": ("metrics.jsonl", '{"step": 1\n{"step": 2, "loss": 1}\n', "line 1"),
    "metrics deep": ("metrics.jsonl", nested(100_000) + "\n", "metrics.jsonl"),
    "step of text": ("metrics.jsonl", '{"step": "one", "loss": 1}\n', "metrics.jsonl"),
    "step a list": ("metrics.jsonl", '{"step": [1], "loss": 1}\n', "metrics.jsonl"),
    "step nan": ("metrics.jsonl", '{"step": NaN, "loss": 1}\n', "metrics.jsonl"),
    "step of 40 digits": ("metrics.jsonl", '{"step": ' + "9" * 40 + ', "loss": 1}\n', "metrics.jsonl"),
    "metrics not UTF-8": ("metrics.jsonl", b'{"step": 1, "\xff": 1}\n', "metrics.jsonl"),
    "no metrics": ("metrics.jsonl", "", "metrics.jsonl"),
    "recipe deep": ("recipe.yaml", f"steps: {nested(5_000)}", "recipe.yaml"),
    "recipe a list": ("recipe.yaml", "[1, 2]", "recipe.yaml"),
    "recipe with lists": ("recipe.yaml", "steps: [1, 2]", "recipe.yaml"),
    "recipe with the key 1": ("recipe.yaml", "1: 2", "recipe.yaml"),
    "recipe of laughs": ("recipe.yaml", LAUGHS, "recipe.yaml"),
    "recipe not UTF-8": ("recipe.yaml", b"name: \xff", "recipe.yaml"),
}


def test_damaged_run_folders_are_named_by_compare(tmp_path, promise):
    good = write_run(tmp_path / "good")
    kept = 0
    for number, (file, content, named) in enumerate(FILES.values()):
        run = write_run(tmp_path / str(number), alpha=0.5)
        (run / file).write_bytes(content.encode() if isinstance(content, str) else content)
        kept += one_sentence(named, "compare", good, run, "--out", tmp_path / "out")
    promise("damaged files of a run that compare names", tried=len(FILES), kept=kept)


ODD = {  # what compare reads over: lists as values of a status, large numbers, diagnoses under odd names
    "status of lists": ("status.json", json.dumps({"status": ["a"], "tokenizer_sha256": [1], "reason": {"a": 1}})),
    "a large metric": ("metrics.jsonl", '{"step": 1, "loss": ' + "9" * 400 + ', "eval_loss": 1.0}\n'),
    "a far layer": ("metrics.jsonl", '{"step": 1, "diagnose/layer_' + "9" * 30 + '/entropy_mean": 1.0, "loss": 1}\n'),
    "a diagnosis of step x": ("diagnosis/step-x/diagnosis.json", "{}"),
}


def test_what_no_comparison_needs_does_not_stop_it(tmp_path, promise, full):
    good = write_run(tmp_path / "good")
    kept = 0
    for number, (file, content) in enumerate(ODD.values()):
        run = write_run(tmp_path / str(number), alpha=0.5)
        (run / file).parent.mkdir(parents=True, exist_ok=True)
        (run / file).write_text(content)
        out = ["--out", tmp_path / f"out{number}"] if full else ["--json"]  # pages take seconds
        kept += command("compare", good, run, *out)[0] == 0
    promise("odd entries of a run that compare reads over", tried=len(ODD), kept=kept)


def is_plain(text):
    return all(char.isprintable() or char in "\n\t" for char in text)


def test_control_characters_of_files_do_not_reach_the_terminal(tmp_path, promise, full):
    good = write_run(tmp_path / "good")
    named = write_run(tmp_path / f"named{ESCAPE}", alpha=0.5)
    stopped = write_run(tmp_path / "stopped", alpha=0.5, status="stopped")
    about = json.loads((stopped / "status.json").read_text())
    (stopped / "status.json").write_text(json.dumps(about | {"reason": ESCAPE}))
    keyed = write_run(tmp_path / "keyed", alpha=0.5)
    (keyed / "recipe.yaml").write_text(yaml.safe_dump(RECIPE | {"data": ESCAPE, ESCAPE: ESCAPE}))
    report = tiny_diagnosis(0.0, 1.0)
    report = uc.Diagnosis.load(report.save(tmp_path / "first"))
    report.info["model"] = report.info["sample"] = ESCAPE
    report.notes.append(ESCAPE)
    saved = report.save(tmp_path / "saved")
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(yaml.safe_dump({"steps": 3, "tokenizer": ESCAPE}))
    out = tmp_path / "out"
    cases = [
        ("compare", good, named, "--out", out / "1"),
        ("compare", good, stopped, "--out", out / "2"),
        ("compare", good, keyed, "--out", out / "3"),
        ("compare", saved, saved, "--out", out / "4"),
        ("compare", good, tmp_path / ESCAPE),
        ("page", tmp_path / ESCAPE),
        ("train", tmp_path / ESCAPE),
        ("train", recipe, "--out", out / "5"),
        ("train", recipe, "--print_config"),
        ("diagnose", tmp_path / ESCAPE),
        (ESCAPE,),
    ]
    cases = cases if full else cases[3:]  # pages take seconds
    seen = [command(*case) for case in cases]
    kept = sum(is_plain(printed + said) for _, printed, said in seen)
    assert any(r"\x1b[2J" in printed + said for _, printed, said in seen)  # they are shown, not dropped
    promise("texts with escapes that reached the terminal as plain characters", tried=len(cases), kept=kept)


@pytest.fixture(scope="module")
def models():
    text = hf.GPT2Config(
        n_layer=2, n_embd=8, n_head=2, vocab_size=50, n_positions=16, bos_token_id=None, eos_token_id=None
    )
    image = hf.ViTConfig(
        num_hidden_layers=2,
        hidden_size=8,
        num_attention_heads=2,
        intermediate_size=8,
        image_size=8,
        patch_size=4,
    )
    return hf.GPT2LMHeadModel(text), hf.ViTForImageClassification(image)


ROWS = {  # JSON lines, and what the sentence has to name
    "text for ids": ('{"input_ids": "abc"}', "input_ids"),
    "words for ids": ('{"input_ids": ["a", "b"]}', "input_ids"),
    "fractions for ids": ('{"input_ids": [1.5, 2.5]}', "input_ids"),
    "truths for ids": ('{"input_ids": [true, false]}', "input_ids"),
    "nothing for ids": ('{"input_ids": null}', "needed"),
    "a number for ids": ('{"input_ids": 5}', "needed"),
    "an object for ids": ('{"input_ids": {"a": 1}}', "needed"),
    "lists in ids": ('{"input_ids": [[1, 2], [3, 4]]}', "input_ids"),
    "ids outside the vocabulary": ('{"input_ids": [1, 50]}', "from 0 to 49"),
    "negative ids": ('{"input_ids": [1, -1]}', "from 0 to 49"),
    "ids of 30 digits": ('{"input_ids": [1, ' + "9" * 30 + "]}", "from 0 to 49"),
    "an id of 5,000 digits": ('{"input_ids": [1, ' + "9" * 5_000 + "]}", "line 1"),
    "deep nesting": (nested(100_000), "line 1"),
    "no object": ("[1, 2]", "line 1"),
    "cut off": ('{"input_ids": [1', "line 1"),
    "no known field": ('{"words": "a"}', "needed"),
    "an image for a text model": ('{"image": [[1, 2], [3, 4]]}', "input_ids"),
    "empty": ("\n\n", "empty"),
    "too short": ('{"input_ids": [1]}', "two tokens"),
}


def raises_naming(file, part, call, *arguments):
    """Whether a call raises a ValueError of one line that names the file and has `part` in it."""
    try:
        call(*arguments)
    except ValueError as error:
        good = file in str(error) and part in str(error) and "\n" not in str(error) and len(str(error)) < 1_000
        if not good:
            print(f"{part}: {error!s:.300}")
        return good
    except Exception as error:
        print(f"{part}: {error!r:.300}")
    return False


def test_rows_that_do_not_fit_are_named(models, tmp_path, promise):
    file = tmp_path / "rows.jsonl"
    kept = 0
    for line, part in ROWS.values():
        file.write_text(line + "\n")
        kept += raises_naming("rows.jsonl", part, load_batches, models[0], str(file))
    file.write_bytes(b'{"input_ids": "\xff"}\n')
    kept += raises_naming("rows.jsonl", "UTF-8", load_batches, models[0], str(file))
    promise("rows of data refused in one sentence", tried=len(ROWS) + 1, kept=kept)


def test_rows_that_are_too_long_are_cut_to_the_model(models, tmp_path):
    file = tmp_path / "rows.jsonl"
    file.write_text(json.dumps({"input_ids": [1] * 5_000}) + "\n")
    [batch] = load_batches(models[0], str(file))
    assert batch["input_ids"].shape == (1, 16)
    np.savez(tmp_path / "ids.npz", input_ids=np.ones((3, 5_000), dtype=np.int32))
    assert [b["input_ids"].shape for b in load_batches(models[0], str(tmp_path / "ids.npz"))] == [(1, 16)] * 3


ARRAYS = {  # arrays, which model, and what the sentence has to name
    "fractions for ids": ({"input_ids": np.ones((2, 3))}, 0, "input_ids"),
    "one row": ({"input_ids": np.ones(3, dtype=int)}, 0, "input_ids"),
    "three axes": ({"input_ids": np.ones((2, 3, 4), dtype=int)}, 0, "input_ids"),
    "ids outside the vocabulary": ({"input_ids": np.full((2, 3), 50)}, 0, "from 0 to 49"),
    "no ids": ({"input_ids": np.ones((0, 3), dtype=int)}, 0, "input_ids"),
    "words": ({"input_ids": np.array([["a", "b"]])}, 0, "input_ids"),
    "pickled objects": ({"input_ids": np.array([[{}, {}]], dtype=object)}, 0, "npz"),
    "images for a text model": ({"images": np.ones((2, 8, 8, 3), dtype=np.uint8)}, 0, "input_ids"),
    "ids for an image model": ({"input_ids": np.ones((2, 3), dtype=int)}, 1, "pixel_values"),
    "flat images": ({"images": np.ones((2, 8), dtype=np.uint8)}, 1, "image"),
    "two channels": ({"images": np.ones((2, 8, 8, 2), dtype=np.uint8)}, 1, "channels"),
    "images without pixels": ({"images": np.ones((2, 0, 8, 3), dtype=np.uint8)}, 1, "images"),
    "images of words": ({"images": np.full((2, 8, 8, 3), "a")}, 1, "image"),
    "other names": ({"x": np.ones(3)}, 0, "needed"),
    "nothing": ({}, 0, "needed"),
}


def huge_array(file):
    """An .npz of 300 bytes whose header promises an array of 8 TB."""
    with zipfile.ZipFile(file, "w") as archive, archive.open("input_ids.npy", "w") as array:
        header = {"descr": "<i8", "fortran_order": False, "shape": (10**6, 10**6)}
        np.lib.format.write_array_header_1_0(array, header)


def test_arrays_that_do_not_fit_are_named(models, tmp_path, promise):
    file = tmp_path / "arrays.npz"
    kept = 0
    for arrays, which, part in ARRAYS.values():
        np.savez(file, **arrays)
        kept += raises_naming("arrays.npz", part, load_batches, models[which], str(file))
    np.savez(file, input_ids=np.ones((50, 50), dtype=int))
    whole = file.read_bytes()
    damaged = [
        whole[:100],
        b"",
        whole[: len(whole) // 2],
        b"PK\x03\x04" + bytes(100),
        whole[:200] + b"\xff" * 8 + whole[208:],
    ]
    for content in damaged:
        file.write_bytes(content)
        kept += raises_naming("arrays.npz", "cannot be read", load_batches, models[0], str(file))
    huge_array(file)
    kept += raises_naming("arrays.npz", "cannot be read", load_batches, models[0], str(file))
    promise("arrays refused in one sentence", tried=len(ARRAYS) + len(damaged) + 1, kept=kept)


PICTURES = np.zeros((20, 8, 8, 3), dtype=np.uint8)
LABELLED = {  # arrays of images to train on, and what the sentence has to name
    "no labels": ({"images": PICTURES}, "labels"),
    "no images": ({"labels": np.zeros(20, dtype=int)}, "images"),
    "fewer labels": ({"images": PICTURES, "labels": np.zeros(3, dtype=int)}, "labels"),
    "negative labels": ({"images": PICTURES, "labels": np.full(20, -1)}, "labels"),
    "a label of 10 ** 12": ({"images": PICTURES, "labels": np.full(20, 10**12)}, "labels"),
    "words for labels": ({"images": PICTURES, "labels": np.full(20, "a")}, "labels"),
    "fractions for labels": ({"images": PICTURES, "labels": np.zeros(20)}, "labels"),
    "more labels than classes": (
        {"images": PICTURES, "labels": np.full(20, 2), "class_names": np.array(["a", "b"])},
        "label 2",
    ),
    "nothing": ({"images": PICTURES[:0], "labels": np.zeros(0, dtype=int)}, "labels"),
    "images of fractions": ({"images": PICTURES.astype(float), "labels": np.zeros(20, dtype=int)}, "uint8"),
    "images without pixels": ({"images": PICTURES[:, :0], "labels": np.zeros(20, dtype=int)}, "uint8"),
}


def test_images_that_do_not_fit_are_named(tmp_path, promise):
    kept = 0
    for arrays, part in LABELLED.values():
        np.savez(tmp_path / "train.npz", **arrays)
        kept += raises_naming("", part, load_images, str(tmp_path))
    promise("folders of images refused in one sentence", tried=len(LABELLED), kept=kept)


def test_a_full_disk_is_one_sentence_and_leaves_nothing_behind(models, tmp_path, promise, monkeypatch, full):
    monkeypatch.setenv("UNCOLLAPSE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("UNCOLLAPSE_NATIVE", "0")
    models[0].save_pretrained(tmp_path / "model")
    saved = tiny_diagnosis(0.0, 1.0).save(tmp_path / "saved")
    runs = [write_run(tmp_path / "a"), write_run(tmp_path / "b", alpha=0.5)]
    tiny = ["--vocab_size", 300, "--width", 16, "--heads", 2, "--layers", 1, "--length", 16, "--steps", 1]
    cases = {
        "diagnose": ["diagnose", tmp_path / "model"],
        "page": ["page", saved],
        "compare": ["compare", *runs],
        "tokenizer": ["train", "quickstart", *tiny],
    }
    kept = tried = 0
    for room in (0, 10, 1_000, 30_000) if full else (1_000,):
        for name, arguments in cases.items():
            out = tmp_path / f"out-{name}-{room}" if name != "page" else tmp_path / f"out-{room}.html"
            with limited(resource.RLIMIT_FSIZE, room):
                kept += one_sentence("room", *arguments, "--out", out)
            assert not list(tmp_path.glob(".out*"))
            assert not out.is_file()
            assert name == "tokenizer" or not out.exists()
            tried += 1
    promise("commands on a full disk that ended in one sentence", tried=tried, kept=kept)
