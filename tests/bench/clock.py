"""Time that passes as told."""


class Clock:
    def __init__(self, monkeypatch):
        self.now = 0.0
        monkeypatch.setattr("uncollapse.bench.timing.time.perf_counter", lambda: self.now)

    def takes(self, seconds):
        def run():
            self.now += seconds

        return run
