"""A run that is killed at any of its file-system calls, or meets a disk error there, goes on to the same bits."""

import signal

import pytest

from tests.attack.small_runs import SMALL, same_outcome, status


def chosen(calls, count, full):
    """All calls from the first to the last, or `count` of them, evenly spaced."""
    return range(1, calls + 1) if full else range(calls // (2 * count), calls + 1, calls // count)


def test_a_run_that_is_killed_at_any_call_goes_on_to_the_same_bits(forked, undisturbed, tmp_path, full, promise):
    whole, calls = undisturbed
    tried = kept = 0
    for at in chosen(calls, 2, full):
        folder = tmp_path / f"call-{at}"
        killed = forked.train(folder, at=at, how="kill", **SMALL)
        assert killed["exit"] == -signal.SIGKILL, killed["said"]
        ended = forked.train(folder, "--resume", **SMALL)
        tried += 1
        if ended["exit"] == 0 and same_outcome(folder, whole):
            kept += 1
        else:
            print(f"call {at}: {ended['said']}")
    promise("kills at a file-system call after which --resume ends with the same bits", tried=tried, kept=kept)


@pytest.mark.parametrize("error", ["ENOSPC", "EIO"])
def test_a_disk_error_at_any_call_is_said_and_the_run_goes_on(error, forked, undisturbed, tmp_path, full, promise):
    whole, calls = undisturbed
    tried = kept = 0
    for at in chosen(calls, 1, full):
        folder = tmp_path / f"call-{at}"
        failed = forked.train(folder, at=at, how=error, **SMALL)
        told = failed["exit"] == 2 and "Traceback" not in failed["said"] and status(folder) in (None, "failed")
        survived = failed["exit"] == 0 and same_outcome(folder, whole)  # a clean-up that may fail
        ended = forked.train(folder, "--resume", **SMALL)
        tried += 1
        if (told or survived) and ended["exit"] == 0 and same_outcome(folder, whole):
            kept += 1
        else:
            print(f"call {at}: {failed['exit']} {status(folder)} {failed['said']}, then {ended['said']}")
    names = {"ENOSPC": "full disk from a file-system call on", "EIO": "I/O error at a file-system call"}
    promise(f"{names[error]}: told, and --resume ends with the same bits", tried=tried, kept=kept)


def test_files_that_cannot_grow_are_named_and_the_run_goes_on(forked, undisturbed, tmp_path, full, promise):
    """Also what torch and safetensors write, which Python does not see."""
    whole, _ = undisturbed
    sizes = sorted({path.stat().st_size for path in whole.rglob("*") if path.is_file()} - {0})
    tried = kept = 0
    for size in sizes if full else sizes[-1:]:
        folder = tmp_path / f"size-{size}"
        failed = forked.train(folder, largest_file=size - 1, **SMALL)
        told = failed["exit"] == 2 and "Traceback" not in failed["said"] and "could not be written" in failed["said"]
        ended = forked.train(folder, "--resume", **SMALL)
        tried += 1
        if told and ended["exit"] == 0 and same_outcome(folder, whole):
            kept += 1
        else:
            print(f"{size} bytes: {failed['exit']} {status(folder)} {failed['said']}, then {ended['said']}")
    promise("files that cannot be written whole: told, and --resume ends with the same bits", tried=tried, kept=kept)
