"""`uncollapse` commands in forked children of one process, which has imported everything once.

A child can be stopped at a chosen file-system call of its run: killed, or with an error as of a full or broken disk.
The calls are those that Python reports to audit hooks (files opened for writing, renamed or removed, folders made or
removed), and every `os.fsync`.

    python -m tests.attack.forked     reads one JSON object per line, and prints one for each
"""

import errno
import json
import os
import resource
import select
import signal
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path

WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
CHANGES = ("os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate")
NEEDS_ROOM = ("open", "os.mkdir", "fsync")  # what fails on a full disk for as long as it is full


class Calls:
    """Counts the calls of a run that change its folder, and stops it at one of them."""

    def __init__(self, folder, at, how):
        self.folder, self.at, self.how, self.count = folder, at, how, 0
        sync = os.fsync

        def fsync(descriptor):
            self.made("fsync")
            sync(descriptor)

        os.fsync = fsync
        sys.addaudithook(self.hook)

    def hook(self, event, arguments):
        if event == "open":
            path, _, flags = arguments
            if flags & WRITING and self.inside(path):
                self.made(event)
        elif event in CHANGES and (self.inside(arguments[0]) or not os.path.isabs(arguments[0])):
            self.made(event)  # rmtree removes by names that are relative to an open folder

    def inside(self, path):
        return isinstance(path, str | os.PathLike) and os.fspath(path).startswith(self.folder)

    def made(self, event):
        self.count += 1
        if self.how == "kill" and self.count == self.at:
            os.kill(os.getpid(), signal.SIGKILL)
        if self.how == "EIO" and self.count == self.at:
            raise OSError(errno.EIO, os.strerror(errno.EIO), self.folder)
        if self.how == "ENOSPC" and self.count >= self.at and event in NEEDS_ROOM:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), self.folder)


def child(job, said, counted):
    """Run the command of the job, and end the process."""
    from uncollapse.cli import main

    os.dup2(said.fileno(), 1)
    os.dup2(said.fileno(), 2)
    calls = Calls(job["folder"], job["at"], job["how"])
    if job["largest_file"]:
        resource.setrlimit(resource.RLIMIT_FSIZE, 2 * (job["largest_file"],))
    code = 70
    try:
        code = main(job["arguments"])
    except BaseException as error:  # what `main` lets through would be a traceback
        sys.stderr.write(f"Traceback of {type(error).__name__}: {error}\n")
    sys.stdout.flush()
    sys.stderr.flush()
    os.write(counted, str(calls.count).encode())
    os._exit(code)


def run(job):
    """The outcome of a job in a child."""
    with tempfile.TemporaryFile() as said:
        reading, writing = os.pipe()
        pid = os.fork()
        if pid == 0:
            child(job, said, writing)
        os.close(writing)
        print(pid, flush=True)
        _, status = os.waitpid(pid, 0)
        with os.fdopen(reading) as stream:
            count = stream.read()
        said.seek(0)
        return {
            "exit": os.waitstatus_to_exitcode(status),
            "said": said.read().decode("utf-8", "replace"),
            "calls": int(count) if count else None,
        }


def serve():
    import torch

    import uncollapse.training.run  # noqa: F401 - once, for all children

    torch.set_num_threads(1)  # a child has no threads of its parent's pool
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    for line in sys.stdin:
        print(json.dumps(run(json.loads(line))), flush=True)


class Training:
    """A run in a child, under way."""

    def __init__(self, process):
        self.process = process
        self.pid = int(self._line())

    def _line(self):
        line = self.process.stdout.readline()
        assert line, self.process.stderr.read()
        return line

    def running(self):
        return not select.select([self.process.stdout], [], [], 0)[0]

    def wait(self):
        return json.loads(self._line())


class Runner:
    """Sends jobs to the process that forks, one at a time."""

    def __init__(self, process):
        self.process = process

    def train(self, out, *flags, **how):
        """Train to the end: the exit code, what was said, and the number of calls."""
        return self.start(out, *flags, **how).wait()

    def start(self, out, *flags, at=0, how=None, largest_file=None, **keys):
        options = [f"--{name}={value}" for name, value in keys.items()]
        arguments = ["train", "quickstart", f"--out={out}", *options, *flags]
        job = {"folder": str(out), "arguments": arguments, "at": at, "how": how, "largest_file": largest_file}
        self.process.stdin.write(json.dumps(job) + "\n")
        self.process.stdin.flush()
        return Training(self.process)


@contextmanager
def runner():
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.attack.forked"],
        cwd=Path(__file__).parents[2],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with process:
        yield Runner(process)
        process.stdin.close()


if __name__ == "__main__":
    serve()
