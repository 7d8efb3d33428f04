"""The runs of the study: trained models, ways to put a remedy into them, and orders of the batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ..short_runs.network import RunSize
from ..short_runs.training import RunSettings

SEEDS = range(3)  # orders of the batches; the trained model and what is held out are the same in all
TRIAL_SEEDS = range(1)
# Constant. Of 1e-4, 3e-4 and 1e-3 the highest that cost the control of stories260K less than 5 % of its loss, in a
# pilot with one order of the batches.
RATE = 3e-4
STORIES, SMALL = "stories260K", "small LLaMA"


@dataclass(frozen=True)
class HostModel:
    """A trained model that a remedy is put into, and how it is trained on."""

    name: str
    size: RunSize  # of batches and the run; also of the network where that is trained here
    texts: int = 0  # sequences that it writes itself to be trained on; 0: it is trained on the usual text
    teaching: RunSettings | None = None  # how it was trained, where that is done here
    taught: int = 0  # updates of that training


@dataclass(frozen=True)
class Retrofit:
    """One way to put a remedy into a model."""

    label: str
    remedy: str = ""  # as in recipes; empty: the stock model is trained on
    warmup: float = 0.0  # share of the updates over which alpha and alpha_hidden rise from 0

    @property
    def name(self) -> str:
        """The remedy without its settings."""
        return self.remedy.partition("(")[0]


@dataclass(frozen=True)
class PlannedRetrofit:
    """One run."""

    host: HostModel
    retrofit: Retrofit
    seed: int
    rate: float = RATE

    @property
    def name(self) -> str:
        """How its record is called."""
        return f"{self.host.name}: {self.retrofit.label}: {self.seed}"


CONTROL = "control"
RETROFITS = (
    Retrofit(CONTROL),
    Retrofit("qk_norm", "qk_norm"),
    Retrofit("qk_norm fitted", "qk_norm(fit=True)"),
    Retrofit("qk_norm fitted by head", "qk_norm(gain=head, fit=True)"),
    Retrofit("output_gate", "output_gate"),
    Retrofit("sink", "sink"),
    Retrofit("sink from -30", "sink(start=-30)"),
    Retrofit("hopfield", "hopfield"),
    Retrofit("hopfield warmed up", "hopfield", warmup=0.5),
)
HOSTS = (
    HostModel(STORIES, RunSize(updates=120, every=10, batch=8, length=128, held_out=48), texts=960),
    HostModel(
        SMALL,
        RunSize(updates=120, every=10, batch=8, length=32, layers=4, width=64, held_out=192),
        teaching=RunSettings(seed=0, rate=5e-3, warmup=20),
        taught=300,
    ),
)


def plan(hosts: Sequence[HostModel] = HOSTS, seeds: Sequence[int] = SEEDS) -> list[PlannedRetrofit]:
    """Every way with every model and order.

    >>> [one.name for one in plan()[:2]]
    ['stories260K: control: 0', 'stories260K: qk_norm: 0']
    """
    return [PlannedRetrofit(host, way, seed) for seed in seeds for host in hosts for way in RETROFITS]


def trial_plan(size: RunSize) -> list[PlannedRetrofit]:
    """The same at another size, with one order."""
    stories, small = HOSTS
    hosts = replace(stories, size=size, texts=size.batch), replace(small, size=size, taught=size.updates)
    return plan(hosts, TRIAL_SEEDS)
