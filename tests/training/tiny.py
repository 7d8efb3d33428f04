"""A run of seconds, in this process or in one of its own."""

import os
import subprocess
import sys
from pathlib import Path

SIGNALLED = Path(__file__).with_name("signalled.py")
LIMITED = """
import os, resource, sys
resource.setrlimit(resource.RLIMIT_FSIZE, 2 * (int(sys.argv[1]),))
os.execv(sys.executable, [sys.executable, *sys.argv[2:]])
"""

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


def command(out, signalled=None, **keys):
    """`signalled`: a signal that the process sends itself, when, and at which call (see signalled.py)."""
    program = [str(SIGNALLED), *map(str, signalled)] if signalled else ["-m", "uncollapse"]
    options = [f"--{name}={value}" for name, value in (KEYS | keys).items()]
    return [*program, "train", "quickstart", f"--out={out}", *options]


def start(out, *flags, largest_file=None, **keys):
    """`largest_file`: bytes beyond which writing fails, as on a full disk."""
    limited = ["-c", LIMITED, str(largest_file)] if largest_file else []
    return _process([*limited, *command(out, **keys)], flags)


def torchrun(out, *flags, processes=2, restarts=0, **keys):
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    return _process([*launcher, f"--max-restarts={restarts}", *command(out, **keys)], flags)


def accelerate_launch(out, processes=2, **keys):
    launcher = ["-m", "accelerate.commands.launch", "--multi_gpu", f"--num_processes={processes}"]
    return _process([*launcher, "--main_process_port=0", *command(out, **keys)], [])


def _process(arguments, flags):
    return subprocess.Popen(
        [sys.executable, *arguments, *flags],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
