"""The cache of tokenised data: written once, complete or not at all, checked before use."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

from uncollapse.data.cache import cache_key, cached_folder
from uncollapse.files import MANIFEST

WRITER = """
import sys, time
from pathlib import Path
from uncollapse.data.cache import cached_folder

def write(folder):
    Path(sys.argv[1]).joinpath(f"written-{time.time_ns()}").touch()
    for part in range(20):  # long enough for the other process to arrive
        with (folder / "data").open("ab") as file:
            file.write(bytes([part]) * 1000)
        time.sleep(0.02)

print("ready", flush=True)
sys.stdin.readline()
folder = cached_folder("shared", write)
print(len((folder / "data").read_bytes()))
"""


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("UNCOLLAPSE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "tokens"


def write_hello(folder):
    (folder / "data").write_text("hello")


def never(folder):
    raise AssertionError("the entry was there")


def test_an_entry_is_written_once():
    folder = cached_folder("key", write_hello)
    assert cached_folder("key", never) == folder
    assert (folder / "data").read_text() == "hello"


@pytest.mark.parametrize(
    "damage",
    [
        lambda folder: (folder / "data").write_text("hell"),
        lambda folder: (folder / "data").write_text("jello"),
        lambda folder: (folder / "data").unlink(),
        lambda folder: (folder / MANIFEST).unlink(),
        lambda folder: (folder / MANIFEST).write_text('{"files": '),
    ],
    ids=["truncated", "other bytes", "missing", "no meta", "truncated meta"],
)
def test_a_damaged_entry_is_written_again(damage):
    damage(cached_folder("key", write_hello))
    folder = cached_folder("key", write_hello)
    assert (folder / "data").read_text() == "hello"
    assert cached_folder("key", never) == folder


def test_a_writer_that_fails_leaves_no_entry(cache):
    def half(folder):
        write_hello(folder)
        raise RuntimeError("killed")

    with pytest.raises(RuntimeError, match="killed"):
        cached_folder("key", half)
    assert [path.name for path in cache.iterdir() if path.is_dir()] == []
    assert (cached_folder("key", write_hello) / "data").read_text() == "hello"


def test_two_processes_at_once_write_once_and_both_read_all(tmp_path):
    command = [sys.executable, "-c", WRITER, str(tmp_path)]
    both = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    assert [process.stdout.readline() for process in both] == ["ready\n", "ready\n"]
    for process in both:
        process.stdin.write("go\n")
        process.stdin.flush()
    assert [process.communicate(timeout=60)[0] for process in both] == ["20000\n", "20000\n"]
    assert len(list(tmp_path.glob("written-*"))) == 1


def test_a_writer_that_is_killed_leaves_nothing_behind_for_long(cache, tmp_path):
    process = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    process.stdout.readline()
    process.stdin.write("go\n")
    process.stdin.flush()
    while not list(cache.glob(".shared-*.tmp/data")):
        assert process.poll() is None
        time.sleep(0.005)
    process.kill()
    process.communicate()
    assert (cached_folder("shared", write_hello) / "data").read_text() == "hello"
    assert [path.name for path in cache.iterdir() if path.is_dir()] == ["shared"]


def test_a_cache_that_cannot_be_written_is_named(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("UNCOLLAPSE_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(ValueError, match="set \\$UNCOLLAPSE_CACHE to a folder"):
        cached_folder("key", write_hello)


def test_key_depends_on_every_part():
    assert len({cache_key("a", "b"), cache_key("ab"), cache_key("b", "a"), cache_key("a", "b", "")}) == 4
