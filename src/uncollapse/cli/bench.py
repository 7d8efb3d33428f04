"""`uncollapse bench`: what inherited scores cost against torch's own attention, measured on this machine."""

from __future__ import annotations

import gc
import json
import sys
from dataclasses import asdict, dataclass, replace
from datetime import date
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from .command import Command, UserError, option
from .output import output_folder

if TYPE_CHECKING:
    import pandas as pd

    from uncollapse.bench.measurement import Measurement
    from uncollapse.bench.stack_shape import StackShape

QUICK_ROUNDS = 2
BUDGET = 30.0  # seconds after which a measurement starts no new round
QUICK_BUDGET = 2.0


@dataclass(frozen=True)
class BenchOptions:
    """Options of `uncollapse bench`."""

    out: Path = option(Path("uncollapse-bench"), "folder for bench.json, bench.csv, bench.html and bench.png")
    bars: bool = option(False, "only the figures with a target, in about ten minutes; the date is added to --out")
    quick: bool = option(False, "small inputs and few rounds, under a minute")
    backends: bool = option(
        False, "only what each backend keeps and how exact it is: keeps.png, errors.png, errors.csv"
    )
    remedies: bool = option(False, "only what each remedy costs a training step of GPT-2: remedies.csv")
    watching: bool = option(False, "only what watching a training of GPT-2 and diagnosing it cost: watch.csv")
    rounds: int = option(5, "rounds of each measurement; the fastest counts")
    lengths: str | None = option(None, "tokens of the causal stacks, separated by commas: 256,1024")
    threads: int | None = option(None, "threads to run with (torch's own choice if not given)")
    limit: float = option(300.0, "seconds that one run may take; what would take longer is skipped")
    no_models: bool = option(False, "do not measure whole models")
    estimate: str | None = option(None, "print arithmetic and memory of a model (a name or a folder) and run nothing")
    length: int | None = option(None, "tokens, with --estimate")
    batch: int = option(1, "sequences, with --estimate")
    gpu: Literal["a100", "h100", "b200", "4090", "mi300"] | None = option(
        None, "with --estimate: model the times on this GPU; a model, not a measurement"
    )
    force: bool = option(False, "replace the files of an earlier run")


def run(settings: BenchOptions) -> int:
    """Estimate, or measure, print and write."""
    if settings.estimate is not None:
        return print_estimate(settings.estimate, settings.length, settings.batch, settings.gpu)
    if settings.gpu is not None:
        raise UserError("--gpu goes with --estimate MODEL --length T: nothing is measured on a GPU that is not here.")
    if settings.length is not None:
        raise UserError("--length goes with --estimate MODEL; the lengths to measure are given with --lengths.")
    for name in ("rounds", "threads"):
        value = getattr(settings, name)
        if value is not None and value < 1:
            raise UserError(f"--{name} must be at least 1, got {value}.")
    if not settings.limit > 0:
        raise UserError(f"--limit must be more than 0 seconds, got {settings.limit:g}.")
    lengths = parse_lengths(settings.lengths)
    if settings.backends:
        return draw_backends(settings)
    if settings.remedies or settings.watching:
        return time_models(settings, "remedies" if settings.remedies else "watch")
    if settings.bars:
        settings = replace(settings, out=settings.out.with_name(f"{settings.out.name}-{date.today().isoformat()}"))
    with output_folder(settings.out, settings.force) as folder:
        from uncollapse.bench.machine import describe_machine

        cells = measure(settings, lengths)
        record = {"machine": describe_machine(), "settings": describe(settings)}
        write(folder, cells, record)
    print(f"\nchart: {settings.out / 'bench.html'} (also .png, .csv and .json)")
    return 0


def time_models(settings: BenchOptions, subject: Literal["remedies", "watch"]) -> int:
    """Training steps of GPT-2 with each remedy, or watched, over those without: a table with their bars."""
    import torch

    from uncollapse.bench import models
    from uncollapse.bench.machine import describe_machine
    from uncollapse.bench.measurement import as_table
    from uncollapse.bench.remedies import measure_remedies, remedies_table
    from uncollapse.bench.watching import watch_table

    measured, table_of = {
        "remedies": (measure_remedies, remedies_table),
        "watch": (models.measure_watching, watch_table),
    }[subject]
    torch.set_num_threads(settings.threads or torch.get_num_threads())
    size = models.QUICK if settings.quick else models.FULL
    rounds = min(settings.rounds, QUICK_ROUNDS) if settings.quick else settings.rounds
    with output_folder(settings.out, settings.force) as folder:
        cells = []
        for cell in measured(size, rounds, QUICK_BUDGET if settings.quick else 10 * BUDGET):
            cells.append(cell)
            print(line_of(cell), file=sys.stderr, flush=True)
        table = table_of(as_table(cells))
        print(table.to_string(index=False, float_format="{:.3f}".format))
        table.to_csv(folder / f"{subject}.csv", index=False, float_format="%.4g")
        record = {"machine": describe_machine(), "settings": describe(settings), "cells": [asdict(c) for c in cells]}
        (folder / f"{subject}.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    print(f"\ntable: {settings.out / f'{subject}.csv'}")
    return 0


def draw_backends(settings: BenchOptions) -> int:
    """Two pictures and a table: what each backend keeps, and its error by depth and keep."""
    import pandas as pd

    from uncollapse.bench.backends import DEPTHS, KEEPS, keeps_table, measure_errors
    from uncollapse.report.backends_chart import errors_chart, keeps_chart

    chosen = (DEPTHS[:2], KEEPS[1:3]) if settings.quick else (DEPTHS, KEEPS)
    with output_folder(settings.out, settings.force) as folder:
        errors = pd.DataFrame(measure_errors(*chosen))
        wide = errors.pivot_table(index=["keep", "depth"], columns="name", values="gradient", sort=False)
        print(f"relative error of the gradients of queries and keys\n\n{wide.to_string(float_format='{:.1e}'.format)}")
        errors.to_csv(folder / "errors.csv", index=False, float_format="%.3g")
        keeps_table().to_csv(folder / "keeps.csv", index=False, float_format="%.4g")
        keeps_chart(keeps_table()).save(folder / "keeps.png", scale_factor=2)
        errors_chart(errors).save(folder / "errors.png", scale_factor=2)
    print(f"\npictures: {settings.out / 'keeps.png'}, {settings.out / 'errors.png'}")
    return 0


def parse_lengths(text: str | None) -> list[int] | None:
    """'256,1024' as numbers."""
    if text is None:
        return None
    try:
        lengths = [int(part) for part in text.split(",")]
    except ValueError:
        lengths = [0]
    if min(lengths) < 1:
        raise UserError(f"--lengths must be whole numbers of at least 1, separated by commas, got {text!r}.")
    return lengths


def measure(settings: BenchOptions, lengths: list[int] | None) -> pd.DataFrame:
    """All cells, one after the other, with a progress bar or, without a terminal, lines; Ctrl-C keeps what is there."""
    import torch
    from tqdm import tqdm

    from uncollapse.bench import models
    from uncollapse.bench.attention import measure_attention
    from uncollapse.bench.bars import BARS, measure_bars
    from uncollapse.bench.bars import lengths as bar_lengths
    from uncollapse.bench.implementations import IMPLEMENTATIONS
    from uncollapse.bench.measurement import as_table
    from uncollapse.bench.stack_shape import LENGTHS, QUICK_LENGTHS, measured_shapes

    torch.set_num_threads(settings.threads or torch.get_num_threads())
    shapes = measured_shapes(lengths or (QUICK_LENGTHS if settings.quick else LENGTHS))
    size = models.QUICK if settings.quick else models.FULL
    rounds = min(settings.rounds, QUICK_ROUNDS) if settings.quick else settings.rounds
    budget = QUICK_BUDGET if settings.quick else BUDGET
    compile_time = not settings.quick
    whole = 0 if settings.no_models else len(list(models.workload_pairs(size))) + compile_time
    total = 2 * len(shapes) * len(IMPLEMENTATIONS) + whole
    print(
        f"{len(IMPLEMENTATIONS)} forms of attention, {len(shapes)} shapes, {torch.get_num_threads()} threads, float32."
    )
    parts = [measure_attention(shapes, rounds, budget, settings.limit)]
    if settings.bars:
        parts, total = [measure_bars(rounds, budget, settings.limit)], len(BARS) + len(bar_lengths())
    elif not settings.no_models:
        parts.append(models.measure_models(size, rounds, budget, compile_time=compile_time))
    cells: list[Measurement] = []
    gc.freeze()  # memory is settled before every cell, which need not look through the libraries' objects each time
    with tqdm(total=total, desc="cells", disable=not sys.stderr.isatty(), leave=False) as bar:
        try:
            for cell in chain(*parts):
                cells.append(cell)
                bar.update()
                if bar.disable:  # no terminal: a log shows how far it is
                    print(f"{len(cells)} of {total}: {line_of(cell)}", file=sys.stderr, flush=True)
        except KeyboardInterrupt:
            if not any(cell.ratio is not None and cell.name != cell.against for cell in cells):
                raise
            print("interrupted: what was measured so far follows.", file=sys.stderr)
        finally:
            gc.unfreeze()
    return as_table(cells)


def line_of(cell: Measurement) -> str:
    """One measurement as a line of text."""
    figure = cell.note if cell.seconds is None else f"{cell.seconds:.3g} s"
    ratio = "" if cell.ratio is None else f", {cell.ratio:.2f} of {cell.against}"
    return f"{cell.shape}, {cell.work}, {cell.name}: {figure}{ratio}"


def write(folder: Path, cells: pd.DataFrame, record: dict[str, Any]) -> None:
    """Print the tables; write JSON, CSV, page and picture."""
    from uncollapse.bench.bars import bars_table
    from uncollapse.bench.noise import noise_sentences
    from uncollapse.bench.table import attention_table, findings, left_out, model_table
    from uncollapse.bench.watching import watch_table
    from uncollapse.report.bench_chart import bench_chart
    from uncollapse.report.page import page

    wide, models, missing = attention_table(cells), model_table(cells), left_out(cells)
    print(f"\ntime / SDPA's (peak memory added, MB)\n\n{wide.to_string(index=False)}\n")
    if not models.empty:
        print(f"{models.to_string(index=False)}\n")
    watched = watch_table(cells)
    if not watched.empty:
        print(f"{watched.to_string(index=False, float_format='{:.3f}'.format)}\n")
        watched.to_csv(folder / "watch.csv", index=False, float_format="%.4g")
    bars = bars_table(cells)
    if not bars.empty:
        print(f"{bars.to_string(index=False, float_format='{:.2f}'.format)}\n")
        bars.to_csv(folder / "bars.csv", index=False, float_format="%.3g")
    noise = noise_sentences(cells)
    print("\n".join([*findings(cells), *missing, *noise]))
    record["noisy"] = noise
    record["cells"] = json.loads(cells.to_json(orient="records"))
    (folder / "bench.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    cells.to_csv(folder / "bench.csv", index=False, float_format="%.6g")
    chart = bench_chart(cells)
    sentences = [
        *noise,
        *findings(cells),
        *(f"{row['model']}: {row['work']}, ratio {row['ratio']}." for _, row in models.iterrows()),
    ]
    aid = "A point below the dashed line is faster than SDPA. Table: time in units of SDPA's (peak memory added, MB)."
    machine = record["machine"]
    source = (
        f"uncollapse {machine['uncollapse']}, Python {machine['python']}, torch {machine['packages']['torch']}; "
        f"{machine['processor']}, {machine['threads']} threads, float32; {machine['date']}. {' '.join(missing)}"
    )
    html = page("What inherited scores cost", "Time by length", sentences, chart, aid, wide, source)
    (folder / "bench.html").write_text(html, encoding="utf-8")
    chart.save(folder / "bench.png", scale_factor=2)


def describe(settings: BenchOptions) -> dict[str, Any]:
    """The settings for the record, with what is fixed."""
    from uncollapse.bench.attention import SEED
    from uncollapse.bench.implementations import RULE
    from uncollapse.bench.memory import USABLE

    chosen = asdict(settings)
    for name in ("out", "estimate", "length", "batch", "gpu", "force"):
        del chosen[name]
    fixed = {
        "seed": SEED,
        "dtype": "float32",
        "budget": QUICK_BUDGET if settings.quick else BUDGET,
        "usable_memory": USABLE,
        "rule": asdict(RULE),
    }
    return {**chosen, **fixed}


def print_estimate(model: str, length: int | None, batch: int, gpu: str | None) -> int:
    """Arithmetic and memory of each form, and what `auto` would choose; or modelled times on a GPU."""
    if length is None:
        raise UserError("--estimate needs --length, the number of tokens.")
    from uncollapse.bench.auto import auto_choice
    from uncollapse.bench.model_shape import model_shape
    from uncollapse.bench.table import estimate_table

    shape = model_shape(model, length, batch)
    if gpu is not None:
        print_gpu_model(model, shape, gpu)
        return 0
    print(f"attention of {model}: {shape.name}, float32; nothing is run.\n")
    print(f"{estimate_table(shape).to_string(index=False)}\n")
    print("\n".join(auto_choice(shape)))
    return 0


def print_gpu_model(model: str, shape: StackShape, name: str) -> None:
    """Times of each form on a GPU by the cost model."""
    from uncollapse.bench.gpu_model import GPUS, NOTICE, advice, gpu_table

    gpu = GPUS[name]
    print(f"attention of {model} on {gpu.name}: {shape.name}, bfloat16 inputs; {NOTICE}.\n")
    print(f"{gpu_table(shape, gpu).to_string(index=False)}\n")
    print("Times are of one layer from the second on; a step is a whole layer's training step, in units of flash's.")
    print("\n".join(advice(shape, gpu)))
    print(f"These numbers are {NOTICE}; `uncollapse gpu-test` measures.")


COMMAND = Command(
    name="bench",
    summary="Measure what inherited scores cost against torch's own attention, side by side, on this machine.",
    example="uncollapse bench --quick --out my-bench",
    options=BenchOptions,
    run=run,
)
