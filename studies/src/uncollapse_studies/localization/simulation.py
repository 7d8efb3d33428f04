"""Figure 5 of the second paper: propagation and entropy of random walks, simulated, beside the closed forms."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass

import numpy as np
import pandas as pd
import torch

from uncollapse.theory import Simulation, anisotropic_covariance, generator, signal_propagation, simulate

from ..figure import Result, Size

MEANS, SCALES = (0.0, 0.01, 0.1, 0.3), (0.01, 0.3)
SHOWN = ((0.0, 0.3), (0.01, 0.01), (0.1, 0.01), (0.3, 0.01))  # the spectra whose rho is drawn
SIMULATION, CORRECTED, PRINTED = "simulation", "corrected, finite T", "as printed"
ISOTROPIC, ANISOTROPIC = "isotropic", "anisotropic"


@dataclass(frozen=True)
class SimulationSetting:
    """The sizes of the paper."""

    width: int = 128
    tokens: int = 40
    walks: int = 300
    draws: int = 10
    seed: int = 0


SMALLEST = SimulationSetting(width=16, tokens=8, walks=20, draws=2)


def simulation_table(setting: SimulationSetting, tick: Callable[[], object]) -> pd.DataFrame:
    """Rho by position and the entropies, of every spectrum and both covariances."""
    spectra = [(mean, scale) for mean in MEANS for scale in SCALES]
    covariances = {
        ISOTROPIC: None,
        ANISOTROPIC: anisotropic_covariance(setting.width, generator(setting.seed)),
    }
    rows: list[dict[str, object]] = []
    with one_thread():
        for name, covariance in covariances.items():
            for run in simulate(spectra, covariance=covariance, tick=tick, **asdict(setting)):
                labels = {"covariance": name, "mean": run.mean, "scale": run.scale}
                rows += [{**labels, **row} for row in _rows(run, setting)]
    return pd.DataFrame(rows).assign(seeds=setting.draws)


@contextmanager
def one_thread() -> Iterator[None]:
    """Many small products are fastest on one thread: several wait for each other longer than they work."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _rows(run: Simulation, setting: SimulationSetting) -> Iterable[dict[str, object]]:
    theta = np.arange(1, setting.tokens + 1) / setting.tokens
    closed = {
        CORRECTED: [s.propagation(setting.tokens) for s in run.statistics],
        PRINTED: [signal_propagation(theta, s.xi, s.eta, "as_printed") for s in run.statistics],
    }
    for index, position in enumerate(theta):
        band = (run.rho.mean[index], run.rho.low[index], run.rho.high[index])
        yield _row("rho", SIMULATION, position, *band)
        for source, values in closed.items():
            yield _row("rho", source, position, np.mean(values, axis=0)[index])
    for quantity, band_of in (("entropy, all queries", run.entropy), ("entropy, last query", run.last_entropy)):
        yield _row(quantity, SIMULATION, np.nan, float(band_of.mean), float(band_of.low), float(band_of.high))


def _row(
    quantity: str, source: str, theta: float, value: float, low: float = np.nan, high: float = np.nan
) -> dict[str, object]:
    return {"quantity": quantity, "source": source, "theta": theta, "value": value, "low": low, "high": high}


def figure(size: Size, tick: Callable[[], object]) -> Result:
    """The simulation, and how far the closed forms are from it."""
    from ..charts.simulation_chart import simulation_chart

    setting = SimulationSetting() if size == "full" else SMALLEST
    table = simulation_table(setting, tick)
    wide = table[table["quantity"] == "rho"].pivot(
        index=["covariance", "mean", "scale", "theta"], columns="source", values="value"
    )
    errors = pd.DataFrame({name: (wide[name] - wide[SIMULATION]).abs() for name in (CORRECTED, PRINTED)})
    worst = errors.groupby(["covariance", "mean", "scale"]).max().round(3).reset_index()
    last = table[(table["quantity"] == "entropy, last query") & (table["covariance"] == ISOTROPIC)]
    narrow = last[last["scale"] == SCALES[0]].set_index("mean")["value"]
    sentences = [
        f"The corrected finite-T form is within {worst[CORRECTED].max():.3f} of the simulation everywhere, "
        f"the printed one up to {worst[PRINTED].max():.2f} off.",
        f"Localised rho is not high entropy: at scale {SCALES[0]:g} the entropy of the last query falls from "
        f"{narrow[MEANS[0]]:.2f} (mean {MEANS[0]:g}) to {narrow[MEANS[-1]]:.2f} (mean {MEANS[-1]:g}), of at most "
        f"{np.log(setting.tokens):.2f}.",
    ]
    return Result(
        table=table,
        chart=simulation_chart(table, SHOWN, float(np.log(setting.tokens))),
        sentences=sentences,
        reading_aid="Above: how often a token's signal reaches the last query; the band is a 95 % interval over draws "
        "of W_QK. Below: mean attention entropy; the dotted line is log T, uniform attention.",
        summary=worst.rename(columns={CORRECTED: f"error, {CORRECTED}", PRINTED: f"error, {PRINTED}"}),
        settings={**asdict(setting), "means": list(MEANS), "scales": list(SCALES), "confidence": 0.95},
    )
