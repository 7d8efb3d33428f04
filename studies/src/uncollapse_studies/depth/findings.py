"""What the runs say: who reaches the accuracy of a net with residual connections, and what trains without norms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import pandas as pd

from uncollapse.statistics import FEWEST, Estimate, SeedSummary, difference, differences, summarise

from .plan import ALPHA, GROUPS, INHERITING, LONGER, METHODS, NORM_FREE, PLAIN, REMEDIES, RESIDUAL, SKIP_FREE
from .record import DepthCourse, at_best_rate, trains, updates_to_reach

AIM_LAYERS = 16


@dataclass(frozen=True)
class MethodFinding:
    """One method on one network, at its best rate."""

    runs: Sequence[DepthCourse]  # one a seed
    reached: Sequence[int | None]  # updates to what the net with residual connections has at its end, one a seed

    @property
    def rate(self) -> float:
        """The best rate."""
        return self.runs[0].rate

    @cached_property
    def accuracy(self) -> SeedSummary:
        """Held-out accuracy at the end, in percent; networks that do not train all count as the same guess.

        Each gives one class to every image, so that seeds agree, and the classes of two methods would differ for sure.
        """
        return summarise([100 * (run.last_accuracy if trains(run) else run.guess.accuracy) for run in self.runs])

    @cached_property
    def loss(self) -> SeedSummary:
        """Held-out loss at the end; that of a guess where a run diverged."""
        return summarise([run.last_loss for run in self.runs])

    @property
    def always(self) -> bool:
        """Whether it reached that with every seed."""
        return bool(self.reached) and None not in self.reached

    @property
    def training(self) -> int:
        """With how many seeds it trains."""
        return sum(map(trains, self.runs))


@dataclass(frozen=True)
class DepthFinding:
    """All methods at one depth without residual connections."""

    layers: int
    methods: Mapping[str, MethodFinding]  # the net with residual connections among them

    @property
    def updates(self) -> int:
        """Of the net with residual connections."""
        return self.methods[RESIDUAL].runs[0].updates

    @cached_property
    def against(self) -> dict[str, Estimate]:
        """Accuracies at the end less that of the plain net that starts alike, with Holm's correction over the rest."""
        found: dict[str, Estimate] = {}
        for plain, *others in GROUPS:
            if plain in self.methods:
                own = {name: self.methods[name].accuracy for name in others if name in self.methods}
                found |= differences(self.methods[plain].accuracy, own)
        return found

    @property
    def inheriting(self) -> Estimate | None:
        """What alpha' adds to alpha."""
        if ALPHA not in self.methods or INHERITING not in self.methods:
            return None
        return difference(self.methods[ALPHA].accuracy, self.methods[INHERITING].accuracy)


@dataclass(frozen=True)
class DepthFindings:
    """All runs, and everything that is said of them."""

    runs: Sequence[DepthCourse]

    def _at_best(self, part: str, names: Sequence[str], layers: int) -> dict[str, list[DepthCourse]]:
        own = [run for run in self.runs if run.part == part and run.layers == layers]
        rates = {run.rate for run in own}
        best = {name: at_best_rate([run for run in own if run.method == name], rates) for name in names}
        return {name: runs for name, runs in best.items() if runs}

    @cached_property
    def by_depth(self) -> dict[int, DepthFinding]:
        """Depth -> methods; a depth without its net with residual connections says nothing."""
        found = {}
        for layers in sorted({run.layers for run in self.runs if run.part == SKIP_FREE}):
            best = self._at_best(SKIP_FREE, (RESIDUAL, *METHODS), layers)
            targets = {run.seed: run.last_accuracy for run in best.get(RESIDUAL, [])}
            if targets:
                found[layers] = DepthFinding(layers, {name: _against(own, targets) for name, own in best.items()})
        return found

    @cached_property
    def norm_free(self) -> dict[str, MethodFinding]:
        """Without norms: remedy -> what came of it, at its best rate."""
        depths = {run.layers for run in self.runs if run.part == NORM_FREE}
        best = self._at_best(NORM_FREE, tuple(REMEDIES), depths.pop()) if depths else {}
        return {name: MethodFinding(own, ()) for name, own in best.items()}

    @cached_property
    def norm_free_against(self) -> dict[str, Estimate]:
        """Losses at the end less the plain net's, with Holm's correction over the remedies."""
        if PLAIN not in self.norm_free:
            return {}
        others = {name: own.loss for name, own in self.norm_free.items() if name != PLAIN}
        return differences(self.norm_free[PLAIN].loss, others)

    def curves(self) -> pd.DataFrame:
        """All numbers, tidy: one row for each measured update."""
        rows = [
            (run.part, run.layers, run.method, run.rate, run.seed, int(step), float(loss), float(accuracy))
            for run in self.runs
            for step, loss, accuracy in zip(run.steps, run.losses, run.accuracies, strict=True)
        ]
        columns = ["part", "layers", "method", "rate", "seed", "update", "loss", "accuracy"]
        return pd.DataFrame(rows, columns=columns)

    def table(self) -> pd.DataFrame:
        """One row for each network and method."""
        rows = []
        for layers, found in self.by_depth.items():
            for name, own in found.methods.items():
                half = summarise([100 * run.accuracy(found.updates) for run in own.runs])
                gap = found.against.get(name)
                about = {
                    f"accuracy in % after {found.updates} updates": _shown(half, 1),
                    f"after {LONGER * found.updates}": "" if name == RESIDUAL else _shown(own.accuracy, 1),
                    "against plain, points": "" if gap is None else _points(gap),
                    "outcome": "" if name == RESIDUAL else _outcome(own, LONGER * found.updates),
                }
                rows.append(_row(f"{layers} layers, {SKIP_FREE}", name, own) | about)
        for name, own in self.norm_free.items():
            gap = self.norm_free_against.get(name)
            about = {
                "held-out loss": _shown(own.loss, 3),
                "against plain, loss": "" if gap is None else str(gap),
                "outcome": f"trains with {own.training} of {len(own.runs)} seeds",
            }
            rows.append(_row(f"{own.runs[0].layers} layers, {NORM_FREE}", name, own) | about)
        table = pd.DataFrame(rows).fillna("")
        return table[[*(column for column in table if column not in LAST), *(c for c in LAST if c in table)]]


LAST = ("outcome", "seeds")  # columns


def _against(runs: Sequence[DepthCourse], targets: Mapping[int, float]) -> MethodFinding:
    known = [run for run in runs if run.seed in targets]
    return MethodFinding(runs, [updates_to_reach(run, targets[run.seed]) for run in known])


def _row(network: str, name: str, own: MethodFinding) -> dict[str, object]:
    return {"network": network, "method": name, "best rate": f"{own.rate:g}", "seeds": own.accuracy.seeds}


def _outcome(own: MethodFinding, updates: int) -> str:
    told = [f"after {update}" if update is not None else f"not within {updates}" for update in own.reached]
    return f"reaches it: {', '.join(told)}"


def _shown(own: SeedSummary, digits: int) -> str:
    return f"{own.mean:.{digits}f}" + (f" ± {own.spread:.{digits}f}" if own.seeds >= FEWEST else "")


def _points(gap: Estimate) -> str:
    if gap.seeds < FEWEST:
        return f"{gap.value:+.1f} (one seed)"
    return f"{gap.value:+.1f} ({gap.low:+.1f} to {gap.high:+.1f})"
