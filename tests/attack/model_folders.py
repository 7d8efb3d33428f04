"""Folders that look like models and are not: each is a good one, changed in one way.

Run as a program (`python -m tests.attack.model_folders FOLDER EVERY`) it writes, loads and diagnoses them, within a
bound on memory, and prints what each ended in.
"""

import contextlib
import io
import json
import math
import os
import resource
import shutil
import struct
import sys
import traceback
from pathlib import Path

import torch
import transformers as hf
from safetensors.torch import load_file, save_file

import uncollapse as uc
from uncollapse.cli import main

SIZE = {"vocab_size": 40, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
GPT2 = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 48, **SIZE}
LLAMA = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 32,
    "max_position_embeddings": 48,
    **SIZE,
}
RULE = {"name": "hopfield", "keep": 0.5, "take": 0.5, "start": "zero", "mean": False, "alpha": 0.5}
CONVERTED = {"alpha": 0.5, "skip": "stream", "backend": "auto", "rule": RULE}
WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
EVIL = "open('ran', 'w')\n"  # what code of a folder would do if it were run
ENOUGH = bytes(200_000)  # the size of the weights
MEMORY = 8 << 30  # bytes of address space: a folder that asks for more must end in a sentence, not in the kernel's kill


def config(**values):
    """Change values of config.json; None leaves one out."""

    def change(folder):
        file = folder / "config.json"
        data = json.loads(file.read_text()) | values
        file.write_text(json.dumps({key: value for key, value in data.items() if value is not None}))

    return change


def content(name, data):
    """Replace a file."""

    def change(folder):
        (folder / name).unlink(missing_ok=True)
        (folder / name).write_bytes(data if isinstance(data, bytes) else data.encode())

    return change


def directory(name):
    """A folder in place of a file."""

    def change(folder):
        (folder / name).unlink()
        (folder / name).mkdir()

    return change


def link(name, target):
    """A symbolic link in place of a file."""

    def change(folder):
        (folder / name).unlink()
        (folder / name).symlink_to(target)

    return change


def weights(edit):
    """Change the stored tensors: a function of the dictionary, in place."""

    def change(folder):
        tensors = load_file(folder / WEIGHTS)
        edit(tensors)
        save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})

    return change


def header(text):
    """A file of safetensors with a header of our own and data enough for the model."""
    data = text.encode()
    return content(WEIGHTS, struct.pack("<Q", len(data)) + data + ENOUGH)


def cut(share):
    """Only the first part of the weights."""

    def change(folder):
        data = (folder / WEIGHTS).read_bytes()
        (folder / WEIGHTS).write_bytes(data[: int(share * len(data))])

    return change


def sharded(index):
    """An index of shards in place of the one file."""

    def change(folder):
        (folder / WEIGHTS).unlink()
        content(INDEX, json.dumps(index) if not isinstance(index, str) else index)(folder)

    return change


def pickled(data):
    """A file of torch in place of safetensors."""

    def change(folder):
        (folder / WEIGHTS).unlink()
        content("pytorch_model.bin", data + ENOUGH)(folder)

    return change


def both(*changes):
    """One change after the other."""

    def change(folder):
        for each in changes:
            each(folder)

    return change


def own_code(folder):
    """A model class of the folder's own."""
    own = {"AutoConfig": "evil.EvilConfig", "AutoModelForCausalLM": "evil.EvilModel"}
    config(model_type="evil", auto_map=own, architectures=["EvilModel"])(folder)
    (folder / "evil.py").write_text(EVIL)


def to_int8(tensors):
    """Every weight as whole numbers, without the scales that a quantised model has."""
    for name, tensor in tensors.items():
        tensors[name] = (100 * tensor).char()


def one_shorter(name):
    """A weight that lost its last row."""

    def edit(tensors):
        tensors[name] = tensors[name][:-1].clone()

    return edit


def uncollapse(**values):
    """Change the settings that a converted model keeps in its config."""
    return config(uncollapse=CONVERTED | values)


EVIL_PICKLE = b"cposix\nsystem\n(S'touch ran'\ntR."
W, P = "transformer.wte.weight", "transformer.wpe.weight"
K = "model.layers.{}.self_attn.{}_proj.weight"

GPT2_FOLDERS = {
    "config that is not JSON": content("config.json", "{'n_embd': 32"),
    "empty config": content("config.json", ""),
    "config that is a list": content("config.json", "[]"),
    "config that is null": content("config.json", "null"),
    "config of bytes": content("config.json", b"\xff\xfe\x00\x80"),
    "config nested too deeply": content("config.json", '{"a":' * 100_000),
    "config that is a folder": directory("config.json"),
    "config that links to itself": link("config.json", "config.json"),
    "config that links to nothing": link("config.json", "nowhere.json"),
    "config without a type": config(model_type=None, architectures=None),
    "type nobody knows": config(model_type="evil"),
    "type that is a number": config(model_type=3),
    "type that is a list": config(model_type=["gpt2"]),
    "architecture Trainer": config(architectures=["Trainer"]),
    "architecture AutoTokenizer": config(architectures=["AutoTokenizer"]),
    "architecture that is a text": config(architectures="GPT2LMHeadModel"),
    "architecture that is an object": config(architectures={"a": 1}),
    "architecture null": config(architectures=[None]),
    "no architecture": config(architectures=[]),
    "architecture that is a number": config(architectures=[3]),
    "architecture with underscores": config(architectures=["__class__"]),
    "architecture without layers": config(architectures=["GPT2PreTrainedModel"]),
    "architecture of another family": config(architectures=["BertForMaskedLM"]),
    "architecture with a decoder of its own": config(architectures=["T5ForConditionalGeneration"]),
    "code of its own": own_code,
    "heads that do not divide the width": config(n_head=3),
    "no heads": config(n_head=0),
    "no layers": config(n_layer=0),
    "a negative number of layers": config(n_layer=-1),
    "a billion layers": config(n_layer=10**9),
    "more layers than weights": config(n_layer=3),
    "fewer layers than weights": config(n_layer=1),
    "width in words": config(n_embd="wide"),
    "width that is a fraction": config(n_embd=32.5),
    "width that is NaN": config(n_embd=math.nan),
    "a huge width": config(n_embd=10**9),
    "a huge vocabulary": config(vocab_size=10**10),
    "a negative vocabulary": config(vocab_size=-5),
    "a billion positions": config(n_positions=10**9),
    "no positions": config(n_positions=0),
    "activation nobody knows": config(activation_function="evil"),
    "dtype nobody knows": config(dtype="float7"),
    "quantisation nobody knows": config(quantization_config={"quant_method": "evil"}),
    "quantisation without a method": config(quantization_config={"evil": 1}),
    "quantisation that is a text": config(quantization_config="evil"),
    "whole numbers as dtype": config(dtype="int8"),
    "attention kernel of the hub": config(attn_implementation="evil/kernel", _attn_implementation="evil/kernel"),
    "weights cut in half": cut(0.5),
    "weights cut in the header": cut(0.01),
    "empty weights": content(WEIGHTS, b""),
    "weights of random bytes": content(WEIGHTS, bytes(range(1, 256)) * 800),
    "header longer than the file": content(WEIGHTS, struct.pack("<Q", 1 << 62) + ENOUGH),
    "header that is not JSON": header("{oops"),
    "header of a wrong form": header('{"a": 1}'),
    "tensor outside the file": header(f'{{"{W}":{{"dtype":"F32","shape":[40,32],"data_offsets":[0,5120]}}}}'),
    "tensor of a negative size": header(f'{{"{W}":{{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}}}}'),
    "no weights": lambda folder: (folder / WEIGHTS).unlink(),
    "weights that are a folder": directory(WEIGHTS),
    "weights that link to nothing": link(WEIGHTS, "nowhere"),
    "a weight of a wrong shape": weights(one_shorter(W)),
    "an attention weight of a wrong shape": weights(one_shorter("transformer.h.1.attn.c_attn.weight")),
    "a weight without dimensions": weights(lambda t: t.update({W: t[W][0, 0].clone()})),
    "weights of other names": weights(lambda t: [t.update({f"x{i}": t.pop(n)}) for i, n in enumerate(list(t))]),
    "int8 weights": weights(to_int8),
    "int8 weights and a quantisation nobody knows": both(
        weights(to_int8), config(quantization_config={"quant_method": "evil"})
    ),
    "a huge vocabulary without its weights": both(config(vocab_size=10**10), weights(lambda t: t.pop(W))),
    "a vocabulary of zero": both(config(vocab_size=0), weights(lambda t: t.update({W: t[W][:0].clone()}))),
    "positions for one token": both(config(n_positions=1), weights(lambda t: t.update({P: t[P][:1].clone()}))),
    "shards that are not there": sharded({"metadata": {}, "weight_map": {W: "model-00001-of-00001.safetensors"}}),
    "shards outside the folder": sharded({"metadata": {}, "weight_map": {W: "../../../../etc/passwd"}}),
    "shards in a list": sharded({"metadata": {}, "weight_map": [W]}),
    "shards without names": sharded({"metadata": {}}),
    "index of shards that is not JSON": sharded("{oops"),
    "pickle that runs a program": pickled(EVIL_PICKLE),
    "torch file of random bytes": pickled(bytes(range(256))),
    "settings that are a text": config(uncollapse="yes"),
    "settings that are a list": config(uncollapse=[1]),
    "settings that are a number": config(uncollapse=3),
    "settings without content": config(uncollapse={}),
    "settings with an unknown key": uncollapse(evil=1),
    "settings with a rule in words": uncollapse(rule="hopfield"),
    "settings with a rule that lacks a number": uncollapse(rule={"name": "hopfield"}),
    "settings with a rule of unknown keys": uncollapse(rule=RULE | {"evil": 1}),
    "settings with a rule of a wrong type": uncollapse(rule=RULE | {"mean": "never"}),
    "settings with a rule without a name": uncollapse(rule=RULE | {"name": ["hopfield"]}),
    "settings with alpha in words": uncollapse(alpha="half"),
    "settings with alpha 7": uncollapse(alpha=7),
    "settings with alpha NaN": uncollapse(alpha=math.nan),
    "settings with an unknown backend": uncollapse(backend="evil"),
    "settings with a backend that is a list": uncollapse(backend=["auto"]),
    "settings with an unknown skip": uncollapse(skip="evil"),
    "settings with a skip that is an object": uncollapse(skip={}),
    "skip-free GPT-2": config(uncollapse_skip_free=True),
    "adapter of a model that is not there": content("adapter_config.json", '{"base_model_name_or_path": "/nowhere"}'),
}
LLAMA_FOLDERS = {
    "key heads that do not divide, and weights to match": both(
        config(num_key_value_heads=3),
        weights(lambda t: t.update({K.format(n, x): torch.randn(24, 32) for n in (0, 1) for x in "kv"})),
    ),
    "key heads that do not divide the heads": config(num_key_value_heads=3),
    "no key heads": config(num_key_value_heads=0),
    "more key heads than heads": config(num_key_value_heads=8),
    "rotary positions in words": config(rope_parameters="evil"),
    "rotary positions of an unknown kind": config(rope_parameters={"rope_type": "evil", "rope_theta": 1e4}),
    "head size zero": config(head_dim=0),
    "head size that is odd": config(head_dim=7),
    "norm with a text for epsilon": config(rms_norm_eps="small"),
    "layer types of a wrong length": config(layer_types=["full_attention"]),
    "layer types nobody knows": config(layer_types=["evil", "evil"]),
}


def write(folder, every):
    """The hostile folders, or one in `every` of them, below `folder`."""
    models = {"gpt2": hf.GPT2LMHeadModel(hf.GPT2Config(**GPT2)), "llama": hf.LlamaForCausalLM(hf.LlamaConfig(**LLAMA))}
    for model, path in ((model, folder / family) for family, model in models.items()):
        model.save_pretrained(path)
    changes = [("gpt2", *item) for item in GPT2_FOLDERS.items()] + [("llama", *item) for item in LLAMA_FOLDERS.items()]
    for family, name, change in changes[::every]:
        path = folder / "hostile" / name.replace(" ", "-")
        shutil.copytree(folder / family, path)
        change(path)
        yield path


def diagnosed(path):
    """The exit code and what is written to standard error, or a traceback."""
    err = io.StringIO()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(err):
        try:
            code = main(["diagnose", str(path), "--json"])
        except Exception:
            return {"code": 1, "stderr": traceback.format_exc()}
    return {"code": code, "stderr": err.getvalue()}


def raised(path):
    """What the library raises."""
    try:
        uc.diagnose(uc.from_pretrained(path), progress=False)
    except (OSError, ValueError) as error:
        return "OSError" if isinstance(error, OSError) else "ValueError"
    except Exception as error:
        return repr(error)
    return "nothing"


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    os.chdir(sys.argv[1])
    for path in write(Path(sys.argv[1]), int(sys.argv[2])):
        print(json.dumps({"name": path.name, **diagnosed(path), "raised": raised(path)}), flush=True)
