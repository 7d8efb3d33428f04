"""The runs of the study: networks without residual connections by depth, then networks without norms under SGD."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from uncollapse.remedies.contents import ENTRIES

from .network import NetSize

SKIP_FREE, NORM_FREE = "without residual connections", "without norms"
ADAMW, SGD = "AdamW", "SGD"
RESIDUAL, PLAIN = "with residual connections", "plain"
SHAPED = "value_mixing(own=1.0, mean=-1.0)"  # where attention is even, each token keeps its own value
STOCK, MLP, VALUES = "stock", "MLP", "MLP and values"  # how weights start: what begins as the identity


@dataclass(frozen=True)
class Method:
    """What a network without residual connections has instead."""

    remedy: str = ""
    start: str = STOCK


ALPHA, INHERITING = "alpha, normed", "hopfield, normed"  # they differ in alpha'
GROUPS = (  # of networks without residual connections that start alike; the first has no remedy
    {
        PLAIN: Method(),
        "alpha, stream": Method("hopfield(alpha=0.5, alpha_hidden=0.0, skip=stream)"),
        ALPHA: Method("hopfield(alpha=0.5, alpha_hidden=0.0, skip=normed)"),
        INHERITING: Method("hopfield(alpha=0.5, alpha_hidden=0.5, skip=normed)"),
        "shaped attention": Method(SHAPED),
    },
    {
        "plain, started": Method(start=MLP),
        "alpha, started": Method("hopfield(alpha=0.5, alpha_hidden=0.0, skip=normed)", MLP),
        "shaped attention, started": Method(SHAPED, VALUES),
    },
)
METHODS = {name: method for group in GROUPS for name, method in group.items()}


def _as_listed() -> dict[str, str]:
    """Every remedy of the library as its table of contents applies it."""
    more = {entry.name: entry.arguments for entry in ENTRIES if entry.arguments and "optimizer" not in entry.arguments}
    return {entry.name: f"{entry.name}({more.get(entry.name, '')})" for entry in ENTRIES}


REMEDIES = {PLAIN: ""} | _as_listed() | {"value_mixing": SHAPED}  # without norms: name -> remedy


NetworkKey = tuple[str, int, str]  # part, layers, method


@dataclass(frozen=True)
class DepthRun:
    """A run: what its network lacks, its method and remedy, and how it is trained."""

    part: str
    method: str
    remedy: str
    layers: int
    seed: int
    rate: float
    updates: int
    optimizer: str
    warmup: int
    residual: bool
    norms: bool
    start: str = STOCK

    @property
    def key(self) -> NetworkKey:
        """What has a rate of its own."""
        return self.part, self.layers, self.method

    @property
    def name(self) -> str:
        """What tells it from all others."""
        return f"{self.part}, {self.layers} layers, {self.method}, rate {self.rate:g}, seed {self.seed}"


@dataclass(frozen=True)
class PlanSize:
    """Which depths, seeds and rates there are, and for how long the networks are trained."""

    network: NetSize = field(default_factory=NetSize)
    depths: Sequence[int] = (4, 8, 16)
    seeds: int = 3
    rates: Sequence[float] = (3e-4, 1e-3)
    updates: int = 200  # of a network with residual connections; those without have twice as many
    warmup: int = 30
    norm_free_layers: int = 6
    norm_free_seeds: int = 3
    norm_free_rates: Sequence[float] = (0.03, 0.3, 3.0)
    norm_free_updates: int = 150
    remedies: Sequence[str] = tuple(REMEDIES)


FULL = PlanSize()
TRIAL = PlanSize(
    network=NetSize(width=16, mlp_width=32, heads=2, batch=4, images=16, held_out=8, every=2),
    depths=(1, 2),
    seeds=2,
    rates=(1e-3,),
    updates=2,
    warmup=1,
    norm_free_layers=1,
    norm_free_seeds=2,
    norm_free_rates=(0.01, 0.1),
    norm_free_updates=2,
    remedies=(PLAIN, "qk_norm", "qk_clip"),
)
LONGER = 2  # times the updates of a network with residual connections: what the aim allows


def plan(size: PlanSize = FULL, best: Mapping[NetworkKey, float] | None = None) -> list[DepthRun]:
    """The runs: seed 0 tries all rates, the other seeds have the one that was best with it.

    Args:
        size: of the study or of a trial.
        best: that rate, for each part, depth and method; the other seeds of those that it does not have are left out.

    >>> [run.name for run in plan()][:1]
    ['without residual connections, 4 layers, with residual connections, rate 0.0003, seed 0']
    """
    known = best or {}
    return [
        *(run for seed in range(size.seeds) for run in _skip_free(size, seed, known)),
        *(run for seed in range(size.norm_free_seeds) for run in _norm_free(size, seed, known)),
    ]


def count(size: PlanSize = FULL) -> int:
    """How many runs there are once all rates are chosen.

    >>> count() == len(plan(best={run.key: run.rate for run in plan()}))
    True
    """
    return len(plan(size, {run.key: run.rate for run in plan(size)}))


def _rates(rates: Sequence[float], seed: int, key: NetworkKey, best: Mapping[NetworkKey, float]) -> Sequence[float]:
    if seed == 0 or len(rates) == 1:
        return rates
    return [best[key]] if key in best else []


def _skip_free(size: PlanSize, seed: int, best: Mapping[NetworkKey, float]) -> list[DepthRun]:
    return [
        DepthRun(
            SKIP_FREE,
            method,
            own.remedy,
            layers,
            seed,
            rate,
            size.updates * (1 if method == RESIDUAL else LONGER),
            ADAMW,
            size.warmup,
            residual=method == RESIDUAL,
            norms=True,
            start=own.start,
        )
        for layers in size.depths
        for method, own in {RESIDUAL: Method(), **METHODS}.items()
        for rate in _rates(size.rates, seed, (SKIP_FREE, layers, method), best)
    ]


def _norm_free(size: PlanSize, seed: int, best: Mapping[NetworkKey, float]) -> list[DepthRun]:
    layers = size.norm_free_layers
    return [
        DepthRun(
            NORM_FREE,
            method,
            REMEDIES[method],
            layers,
            seed,
            rate,
            size.norm_free_updates,
            SGD,
            warmup=0,
            residual=True,
            norms=False,
        )
        for method in size.remedies
        for rate in _rates(size.norm_free_rates, seed, (NORM_FREE, layers, method), best)
    ]
