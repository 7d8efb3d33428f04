"""A system without /proc and sysconf leaves numbers out instead of failing."""

from tests.processes import process

WITHOUT_PROC = """
import io, os, torch
opened = io.open
def refusing(file, *args, **options):
    if str(file).startswith("/proc"):
        raise FileNotFoundError(2, "No such file or directory", str(file))
    return opened(file, *args, **options)
io.open = refusing  # as on macOS
del os.sysconf  # as on Windows
from uncollapse.bench.machine import describe_machine
from uncollapse.bench.memory import peak_added
ran = []
print(peak_added(lambda: ran.append(1)), ran)
machine = describe_machine()
print(machine["memory_gb"], type(machine["processor"]).__name__)
"""


def test_memory_is_left_out_where_it_cannot_be_measured():
    with process(WITHOUT_PROC) as run:
        out, said = run.communicate(timeout=120)
    assert out == "None [1]\nNone str\n", said
