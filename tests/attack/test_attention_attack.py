"""Random layers of attention against the definition, in every engine, and the C++ tiles under AddressSanitizer."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.attack.attention_cases import largest_error
from uncollapse.attention import _native as native

ROOT = Path(__file__).resolve().parents[2]
ENGINES = {"C++": "1", "torch": "0"}  # what UNCOLLAPSE_NATIVE says
UNDER_ASAN = """
import ctypes, sys
import torch
from tests.attack.attention_cases import Case
from tests.diagnosis.row_cases import random_layer
from uncollapse.attention import row_statistics, tile_engine, token_pairs
row_statistics.WORTH = token_pairs.WORTH = 0
torch.set_num_threads(1)
assert tile_engine(torch.zeros(1, 1, 1, 1)) == "cpp"
for number in range(int(sys.argv[1])):
    for backend in ("carried", "stacked"):
        Case(number).run(backend)
        print("ran", flush=True)
    source, masking, _ = random_layer(number)
    assert row_statistics.compiled_rows(source, masking) is not None
    assert row_statistics.compiled_largest(source, masking) is not None
    tokens = torch.randn(2 + number, 1 + number % 40)
    assert token_pairs.compiled_pairs(tokens, *torch.ones(3, len(tokens)), 400) is not None
    print("ran", flush=True)
if sys.argv[2] == "overflow":
    libc = ctypes.CDLL(None)
    libc.malloc.restype = ctypes.c_void_p
    libc.memset(ctypes.c_void_p(libc.malloc(64)), 0, 65)
"""


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("backend", ["carried", "reversible", "stacked"])
def test_random_layers_are_those_of_the_definition(backend, engine, full, promise, monkeypatch):
    monkeypatch.setenv("UNCOLLAPSE_NATIVE", ENGINES[engine])
    if engine == "C++":
        assert native.operators("tiles") is not None
    cases = range(1_000 if full else 40)
    wrong = {number: error for number in cases if (error := largest_error(number, backend)) > 1}
    print(wrong)
    promise(f"random layers within rounding: {backend}, {engine}", tried=len(cases), kept=len(cases) - len(wrong))


def sanitizer():
    """The library of AddressSanitizer that belongs to g++; None if there is none."""
    if shutil.which("g++") is None:
        return None
    found = subprocess.run(["g++", "-print-file-name=libasan.so"], capture_output=True, text=True).stdout.strip()
    return found if os.path.isabs(found) else None


def under_asan(cache, cases, then=""):
    """Runs random layers with tiles that check each access to memory: the exit code, and what was printed."""
    compiler = cache / "g++"  # which itself need not be watched
    compiler.write_text('#!/bin/sh\nunset LD_PRELOAD\nexec g++ -fsanitize=address -fno-omit-frame-pointer "$@"\n')
    compiler.chmod(0o755)
    environment = {
        "CXX": str(compiler),
        "LD_PRELOAD": sanitizer(),
        "ASAN_OPTIONS": "detect_leaks=0:allocator_may_return_null=1",  # Python keeps memory until it ends
        "UNCOLLAPSE_CACHE": str(cache),
        "PYTHONPATH": str(ROOT),
    }
    command = [sys.executable, "-c", UNDER_ASAN, str(cases), then]
    run = subprocess.run(command, cwd=ROOT, env=os.environ | environment, capture_output=True, text=True, timeout=3_000)
    return run.returncode, run.stdout, run.stderr


def test_the_tiles_touch_no_memory_that_is_not_theirs(full, promise, tmp_path):
    if not full:
        pytest.skip("building the tiles with AddressSanitizer takes a minute; make attack does it")
    if sanitizer() is None:
        pytest.skip("g++ has no libasan.so here")
    code, printed, said = under_asan(tmp_path, 0, "overflow")
    assert code not in (0, -signal.SIGSEGV), "the sanitizer does not see a byte written past the end"
    assert "heap-buffer-overflow" in said
    cases = 300
    code, printed, said = under_asan(tmp_path, cases)
    assert code == 0, said[-5_000:]
    promise("random layers under AddressSanitizer", tried=3 * cases, kept=printed.count("ran"))
