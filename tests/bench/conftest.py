"""The machine that the benchmark looks at: its free memory and its clock."""

import gc
import time
from types import SimpleNamespace

import psutil
import pytest


@pytest.fixture(scope="session", autouse=True)
def _little_to_collect():
    """Memory is settled before every measurement, which need not look through the libraries' objects each time."""
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture
def free_memory(monkeypatch):
    """Let the system report another number of free bytes."""

    def reported(count):
        monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=count))

    return reported


class Clock:
    """Time passes as told, and `tick` seconds with every look at it, so that other work takes that long."""

    def __init__(self):
        self.now = self.tick = 0.0

    def read(self):
        self.now += self.tick
        return self.now

    def takes(self, seconds):
        """A workload that is timed at so many seconds."""

        def run():
            self.now += seconds - self.tick

        return run


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(time, "perf_counter", clock.read)
    return clock
