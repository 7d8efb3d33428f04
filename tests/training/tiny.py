"""A run of seconds, in this process or in one of its own."""

import os
import subprocess
import sys

KEYS = {
    "layers": 2,
    "width": 16,
    "heads": 2,
    "length": 16,
    "vocab_size": 300,
    "batch_size": 4,
    "dropout": 0.1,
    "rule": "hopfield",
    "eval_examples": 8,
    "examples": 40,  # ten updates an epoch
    "log_every": 1,
    "eval_every": 8,
    "save_every": 3,
    "diagnose_every": 0,
    "warmup_steps": 2,
}

IMAGES = {
    "task": "images",
    "data": "digits",
    "family": "vit",
    "image_size": 8,
    "patch_size": 4,
    "layers": 2,
    "heads": 2,
    "width": 16,
    "batch_size": 32,
    "eval_examples": 50,
    "eval_batch_size": 20,  # two whole batches and a half
    "diagnose_every": 0,
    "learning_rate": 3e-3,
    "beta2": 0.99,
}


def command(out, **keys):
    options = [f"--{name}={value}" for name, value in (KEYS | keys).items()]
    return ["-m", "uncollapse", "train", "quickstart", f"--out={out}", *options]


def start(out, *flags, preexec_fn=None, **keys):
    return subprocess.Popen(
        [sys.executable, *command(out, **keys), *flags],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=preexec_fn,
    )


def torchrun(out, *flags, processes=2, restarts=0, **keys):
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    return subprocess.Popen(
        [sys.executable, *launcher, f"--max-restarts={restarts}", *command(out, **keys), *flags],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
