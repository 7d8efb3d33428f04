"""Files are whole at every moment, whatever happens to the process that writes them, and locks end with it."""

import os
import select
import signal
import stat
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from tests.processes import process
from uncollapse import files


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def write_half(path):
    path.write_text("half")
    raise ZeroDivisionError


@pytest.mark.parametrize("data", ["grün\n", b"\x00\xff"])
def test_a_file_is_written_and_replaced(data, tmp_path):
    path = tmp_path / "new" / "file"
    files.write(path, b"earlier")
    files.write(path, data)
    assert path.read_bytes() == (data.encode() if isinstance(data, str) else data)
    assert names(path.parent) == ["file"]


def test_files_and_folders_get_the_mode_that_the_umask_gives(tmp_path):
    earlier = os.umask(0o027)
    try:
        files.write(tmp_path / "file", "text")
        with files.new_folder(tmp_path / "folder"):
            pass
    finally:
        os.umask(earlier)
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == 0o640
    assert stat.S_IMODE((tmp_path / "folder").stat().st_mode) == 0o750


def test_a_block_that_fails_leaves_everything_as_it_was(tmp_path):
    files.write(tmp_path / "file", "earlier")
    with pytest.raises(ZeroDivisionError), files.replacing(tmp_path / "file") as new:
        write_half(new)
    with pytest.raises(ZeroDivisionError), files.new_folder(tmp_path / "folder") as new:
        write_half(new / "part")
    assert names(tmp_path) == ["file"]
    assert (tmp_path / "file").read_text() == "earlier"


def test_arrays_can_be_written_to_the_temporary_file(tmp_path):
    with files.replacing(tmp_path / "a.npz") as new, new.open("wb") as stream:
        np.savez(stream, a=np.arange(3))
    assert np.load(tmp_path / "a.npz")["a"].tolist() == [0, 1, 2]


def test_an_existing_folder_is_refused_or_replaced_as_a_whole(tmp_path):
    with files.new_folder(tmp_path / "folder") as new:
        (new / "first").touch()
    with pytest.raises(FileExistsError, match="exists already; give a new path"), files.new_folder(tmp_path / "folder"):
        pass
    with files.new_folder(tmp_path / "folder", replace=True) as new:
        (new / "second").touch()
    assert names(tmp_path / "folder") == ["second"]
    assert names(tmp_path) == ["folder"]


def test_a_folder_that_appears_meanwhile_is_not_overwritten(tmp_path):
    with pytest.raises(OSError, match="not empty"), files.new_folder(tmp_path / "folder"):
        files.write(tmp_path / "folder" / "of another", "")
    assert names(tmp_path / "folder") == ["of another"]


def test_leftovers_are_removed_by_the_name_they_were_meant_for(tmp_path):
    for name in ("a", "a-b"):
        (tmp_path / f".{name}-0123abcd.tmp").mkdir()
    (tmp_path / ".a-89abcdef.tmp").touch()
    (tmp_path / ".mine.tmp").touch()
    files.remove_leftovers(tmp_path, "a")
    assert names(tmp_path) == [".a-b-0123abcd.tmp", ".mine.tmp"]
    files.remove_leftovers(tmp_path)
    assert names(tmp_path) == [".mine.tmp"]


def test_a_sealed_folder_knows_what_has_changed(tmp_path):
    files.write(tmp_path / "folder" / "part" / "a", "text")
    files.write(tmp_path / "folder" / "b", "")
    folder = tmp_path / "folder"
    assert files.fault(folder) == "it was not finished (no manifest)"
    files.seal(folder, step=3)
    assert files.read_manifest(folder)["step"] == 3
    assert list(files.read_manifest(folder)["files"]) == ["b", "part/a"]
    assert files.fault(folder) is None
    (folder / "added").touch()  # which nothing relies on
    assert files.fault(folder) is None
    (folder / "part" / "a").write_text("test")
    assert files.fault(folder) == "the content of part/a has changed"
    (folder / "part" / "a").write_text("texts")
    assert files.fault(folder) == "part/a has 5 bytes, not 4"
    (folder / "part" / "a").unlink()
    assert files.fault(folder) == "part/a is missing"
    for manifest in ("", "{}", "[]", '{"files": {}}', '{"files": {"b": 1}}', "\0"):
        (folder / "manifest.json").write_text(manifest)
        assert files.fault(folder) in ("its manifest cannot be read", "its manifest names no files")


WRITE_FOR_EVER = """
import itertools
from pathlib import Path
from uncollapse import files
for turn in itertools.count(1):
    files.write(Path({path!r}), bytes([turn % 256]) * 1_000_000)
    if turn == 1:
        print("written", flush=True)
"""


def test_a_writer_that_is_killed_leaves_the_old_file_or_the_new_one(tmp_path):
    path = tmp_path / "cell.json"
    for delay in (0.0, 0.003, 0.007, 0.012, 0.02):  # one write takes a few milliseconds
        with process(WRITE_FOR_EVER.format(path=str(path))) as writer:
            assert writer.stdout.readline() == "written\n"
            time.sleep(delay)
            writer.kill()
        assert writer.returncode == -signal.SIGKILL
        content = path.read_bytes()
        assert len(content) == 1_000_000
        assert content == content[:1] * 1_000_000
        assert all(files.is_temporary(left) for left in tmp_path.iterdir() if left != path)
        assert list(tmp_path.glob("*.json")) == [path]  # which finds hidden files too
    files.remove_leftovers(tmp_path)
    assert names(tmp_path) == ["cell.json"]


KILLED_IN_A_FOLDER = """
import os, signal
from pathlib import Path
from uncollapse import files
with files.new_folder(Path({path!r})) as new:
    (new / "half").write_text("half")
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_writer_of_a_folder_that_is_killed_leaves_no_folder(tmp_path):
    with process(KILLED_IN_A_FOLDER.format(path=str(tmp_path / "folder"))) as writer:
        pass
    assert writer.returncode == -signal.SIGKILL
    [left] = tmp_path.iterdir()
    assert files.is_temporary(left)
    with files.new_folder(tmp_path / "folder") as new:
        (new / "whole").touch()
    assert names(tmp_path / "folder") == ["whole"]


HOLD = """
import time
from pathlib import Path
from uncollapse import files
with files.lock(Path({path!r})):
    print("held", flush=True)
    time.sleep(600)  # until it is killed
"""


def test_a_lock_is_seen_by_others_and_ends_with_the_process(tmp_path):
    path = tmp_path / "new" / "lock"
    assert not files.is_locked(path)
    assert not path.parent.exists()  # asking makes nothing
    with process(HOLD.format(path=str(path))) as holder:
        assert holder.stdout.readline() == "held\n"
        assert files.is_locked(path)
        with pytest.raises(files.LockedError, match="is locked by another process"), files.lock(path, wait=False):
            pass
        holder.kill()
    assert not files.is_locked(path)
    with files.lock(path, wait=False):
        assert files.is_locked(path)


def test_a_lock_that_is_waited_for_comes_when_the_holder_ends(tmp_path):
    path = tmp_path / "lock"
    with process(HOLD.format(path=str(path))) as first, process(HOLD.format(path=str(path))) as second:
        [stream], _, _ = select.select([first.stdout, second.stdout], [], [], 600)  # the other one waits in silence
        holder, waiting = (first, second) if stream is first.stdout else (second, first)
        holder.kill()
        assert waiting.stdout.readline() == "held\n"
        waiting.kill()


@contextmanager
def as_somebody_else():
    """Without the rights of root, which permissions do not bind."""
    user = os.geteuid()
    os.seteuid(65534 if user == 0 else user)
    try:
        yield
    finally:
        os.seteuid(user)


def test_somebody_who_cannot_write_the_lock_can_ask_for_it():
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "lock"
        with files.lock(path):
            path.chmod(0o444)
            os.chmod(folder, 0o555)
            with as_somebody_else():
                assert not os.access(path, os.W_OK, effective_ids=True)
                assert files.is_locked(path)
        with as_somebody_else():
            assert not files.is_locked(path)
        os.chmod(folder, 0o755)


WITHOUT_FCNTL = """
import sys
from pathlib import Path
from filelock import FileLock
sys.modules["fcntl"] = None  # as on Windows, where filelock has another way to lock
from uncollapse import files
path = Path({path!r})
with files.lock(path):
    print(files.is_locked(path))
print(files.is_locked(path))
"""


def test_locks_need_no_fcntl_of_ours(tmp_path):
    with process(WITHOUT_FCNTL.format(path=str(tmp_path / "lock"))) as run:
        out, said = run.communicate(timeout=600)
    assert out == "True\nFalse\n", said


@pytest.mark.parametrize(
    ("environment", "root"),
    [
        ({"UNCOLLAPSE_CACHE": "/a", "XDG_CACHE_HOME": "/b", "HOME": "/c"}, "/a"),
        ({"UNCOLLAPSE_CACHE": "", "XDG_CACHE_HOME": "/b", "HOME": "/c"}, "/b/uncollapse"),
        ({"XDG_CACHE_HOME": "", "HOME": "/c"}, "/c/.cache/uncollapse"),
        ({"UNCOLLAPSE_CACHE": "~/mine", "HOME": "/c"}, "/c/mine"),
    ],
)
def test_one_variable_moves_the_whole_cache(environment, root, monkeypatch):
    for name in ("UNCOLLAPSE_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert str(files.cache_root()) == root


def test_tokenised_data_lies_in_the_cache(tmp_path, monkeypatch):
    from uncollapse.data.cache import cached_folder

    monkeypatch.setenv("UNCOLLAPSE_CACHE", str(tmp_path))
    cached_folder("key", lambda folder: (folder / "data").touch())
    assert (tmp_path / "tokens" / "key" / "data").is_file()


def test_the_module_needs_nothing_of_the_library(tmp_path):
    code = "import sys, uncollapse.files; print(sorted(m for m in sys.modules if m.startswith('uncollapse')))"
    with process(code) as run:
        out, said = run.communicate(timeout=600)
    assert out == "['uncollapse', 'uncollapse.files']\n", said
