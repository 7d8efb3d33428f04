"""The command `uncollapse`, in a process that sends itself a signal at a chosen call: no race with a test that watches.

    python signalled.py SIGNAL MOMENT N train ...

Under torchrun it is the second process of the first attempt that does so.
"""

import os
import signal
import sys
from itertools import count

from uncollapse.cli import main
from uncollapse.training import checkpoints
from uncollapse.training.trainer import RunTrainer

MOMENTS = {
    "in a step": (RunTrainer, "training_step"),
    "between the weights and the optimizer": (RunTrainer, "_save_optimizer_and_scheduler"),
    "before the manifest": (checkpoints, "seal"),
    "before old checkpoints go": (checkpoints, "rotate"),
}


def signal_at(number, owner, name, call):
    """Have the signal sent as the method is called for the `call`-th time."""
    original, calls = getattr(owner, name), count(1)

    def signalled(*args, **options):
        if next(calls) == call:
            os.kill(os.getpid(), number)
        return original(*args, **options)

    setattr(owner, name, signalled)


if __name__ == "__main__":
    number, moment, call, *arguments = sys.argv[1:]
    if os.environ.get("RANK", "1") == "1" and os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0":
        signal_at(signal.Signals[number], *MOMENTS[moment], int(call))
    sys.exit(main(arguments))
