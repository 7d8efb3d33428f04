"""The cache of compiled tiles: what others put there is not loaded, and what is damaged is built again.

Each case runs in a process of its own, forked from one that has torch imported. Its compiler copies tiles that were
built before: the cases are about what is loaded, and compiling would take longer than all of them.
"""

import hashlib
import json
import os
import shutil
import stat
import subprocess
import sys

import pytest
import torch

from uncollapse import files
from uncollapse.attention import _native as native

SOMEBODY_ELSE = 65534
SERVER = """
import atexit, json, os, sys
import torch, uncollapse as uc
os.environ["UNCOLLAPSE_NATIVE"] = "0"
uc.hopfield_attention(*torch.randn(3, 1, 2, 70, 8))  # imports everything and loads no tiles
for line in sys.stdin:
    case = json.loads(line)
    if (child := os.fork()) == 0:
        os.environ |= case["environment"]
        os.dup2(os.open(case["out"], os.O_CREAT | os.O_TRUNC | os.O_WRONLY), 1)
        os.dup2(1, 2)
        _, state = uc.hopfield_attention(*torch.randn(3, 1, 2, 70, 8))
        print("engine:", state.engine, flush=True)
        atexit._run_exitfuncs()  # removes temporary folders
        os._exit(0)  # tearing a forked interpreter down takes seconds
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files to another user")


@pytest.fixture(scope="module")
def compiler(tmp_path_factory):
    """A compiler that copies the tiles of this test run, and a file with one line for each time it was called."""
    assert native.operators("tiles") is not None
    [tiles] = (path for path in torch.ops.loaded_libraries if "/tiles-" in path)
    folder = tmp_path_factory.mktemp("compiler")
    calls, script = folder / "calls", folder / "c++"
    script.write_text(
        f'#!/bin/sh\necho called >> {calls}\nwhile [ "$1" != -o ]; do shift; done\nexec cp {tiles} "$2"\n'
    )
    script.chmod(0o755)
    return script, calls


@pytest.fixture(scope="module")
def planted(tmp_path_factory):
    """A library that writes a file where it is loaded."""
    folder = tmp_path_factory.mktemp("planted")
    source, library, trace = folder / "planted.c", folder / "planted.so", folder / "was-loaded"
    source.write_text(
        "#include <fcntl.h>\n__attribute__((constructor)) static void run(void)"
        f' {{ open("{trace}", O_CREAT | O_WRONLY, 0600); }}\n'
    )
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source], check=True)
    return library, trace


@pytest.fixture(scope="module")
def server():
    one_thread = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}  # a process with more cannot be forked safely
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", SERVER], env=os.environ | one_thread, **pipes) as started:
        yield started
        started.stdin.close()


@pytest.fixture
def attack(tmp_path, compiler, server):
    """Runs one layer with a cache: its exit code, its engine, what it said, and how often it compiled."""
    script, calls = compiler

    def run(cache=tmp_path / "cache"):
        calls.write_text("")
        environment = {"UNCOLLAPSE_CACHE": str(cache), "CXX": str(script), "UNCOLLAPSE_NATIVE": "1"}
        case = {"environment": environment, "out": str(tmp_path / "said")}
        print(json.dumps(case), file=server.stdin, flush=True)
        code = int(server.stdout.readline())
        _, _, engine = (said := (tmp_path / "said").read_text()).partition("engine: ")
        return code, engine.strip(), said, calls.read_text().count("called")

    return run


def library_in(cache):
    [library] = (cache / "native").glob("tiles-*.so")
    return library


def plant(library, planted):
    shutil.copy(planted, library)
    library.with_suffix(".sha256").write_text(hashlib.sha256(planted.read_bytes()).hexdigest())


def give_away(path):
    os.chown(path, SOMEBODY_ELSE, SOMEBODY_ELSE)


def through_a_link(cache):
    cache.joinpath("native").rename(cache / "elsewhere")
    give_away(cache / "elsewhere")
    cache.joinpath("native").symlink_to("elsewhere")


OPEN = {
    "native can be written by everybody": lambda cache: (cache / "native").chmod(0o777),
    "native can be written by the group": lambda cache: (cache / "native").chmod(0o775),
    "native can be written by everybody, sticky": lambda cache: (cache / "native").chmod(0o1777),
    "the cache can be written by everybody": lambda cache: cache.chmod(0o777),
    "native belongs to somebody else": lambda cache: give_away(cache / "native"),
    "the cache belongs to somebody else": give_away,
    "native leads to a folder of somebody else": through_a_link,
}


@needs_root
def test_planted_libraries_are_not_loaded(attack, planted, tmp_path, promise, full):
    library, trace = planted
    names = OPEN if full else list(OPEN)[::2]
    kept = 0
    for number, name in enumerate(names):
        cache = tmp_path / str(number)
        assert attack(cache)[:2] == (0, "cpp")
        plant(library_in(cache), library)
        OPEN[name](cache)
        code, engine, said, compiled = attack(cache)
        kept += (code, engine, compiled, trace.exists()) == (0, "cpp", 1, False) and said.count("are not loaded") == 1
        trace.unlink(missing_ok=True)
    promise("libraries planted in a cache that others can write, not loaded", tried=len(names), kept=kept)


def truncated(share):
    def damage(library):
        content = library.read_bytes()
        library.write_bytes(content[: int(share * len(content))])

    return damage


def flipped(share):
    def damage(library):
        content = bytearray(library.read_bytes())
        content[int(share * (len(content) - 1))] ^= 0xFF
        library.write_bytes(content)

    return damage


def digest(text):
    return lambda library: library.with_suffix(".sha256").write_bytes(text)


DAMAGE = {
    **{f"cut to {share}": truncated(share) for share in (0.3, 0.0, 0.001, 0.01, 0.5, 0.9, 0.999)},
    **{f"byte flipped at {share}": flipped(share) for share in (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)},
    "digest missing": lambda library: library.with_suffix(".sha256").unlink(),
    "digest empty": digest(b""),
    "digest of another file": digest(b"0" * 64),
    "digest no text": digest(b"\xff" * 64),
}


def test_damaged_libraries_are_built_again(attack, tmp_path, promise, full):
    assert attack()[:2] == (0, "cpp")
    cache = tmp_path / "cache"
    good = library_in(cache).read_bytes()
    names = list(DAMAGE) if full else ["cut to 0.3", "byte flipped at 0.6", "digest missing"]
    kept = 0
    for name in names:
        DAMAGE[name](library_in(cache))
        code, engine, _, compiled = attack()
        kept += (code, engine, compiled) == (0, "cpp", 1) and library_in(cache).read_bytes() == good
    promise("damaged libraries that were built again before they were loaded", tried=len(names), kept=kept)


def test_a_good_library_is_loaded_as_it_is(attack, tmp_path):
    attack()
    assert attack() == (0, "cpp", "engine: cpp\n", 0)
    assert stat.S_IMODE((tmp_path / "cache" / "native").stat().st_mode) == 0o700


def test_a_lock_that_is_a_link_leaves_its_target_alone(attack, tmp_path, promise):
    """For the lock of the tiles and for any other one: its target is neither emptied nor locked."""
    precious = tmp_path / "precious"
    precious.write_text("precious")
    attack()
    library = library_in(tmp_path / "cache")
    library.unlink()
    library.with_suffix(".lock").unlink()
    library.with_suffix(".lock").symlink_to(precious)
    code, engine, said, compiled = attack()
    kept = (code, engine, compiled, precious.read_text()) == (0, "torch", 0, "precious") and "symbolic link" in said
    other = tmp_path / "lock"
    other.symlink_to(precious)
    with pytest.raises(OSError, match="is a symbolic link, which a lock must not be; remove it"), files.lock(other):
        pass
    kept += precious.read_text() == "precious"
    promise("locks that lead elsewhere, whose target stayed as it was", tried=2, kept=kept)
