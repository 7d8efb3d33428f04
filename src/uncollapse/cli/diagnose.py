"""`uncollapse diagnose MODEL`: which layers and heads have collapsed, by which measure, how badly, and what helps."""

from __future__ import annotations

import json
import logging
import sys
import warnings
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from uncollapse.files import printable

from .command import Command, UserError, option
from .output import output_folder
from .page import saved_diagnosis
from .python_model import is_python_model, load_python_model

if TYPE_CHECKING:
    from uncollapse.diagnosis import Diagnosis

COLLAPSED, NOT_MEASURED, UNREADABLE, WORSE = 3, 4, 5, 6  # exit codes; 2 is that of a wrong argument


@dataclass(frozen=True)
class DiagnoseOptions:
    """Options of `uncollapse diagnose`."""

    model: str = option(
        help="folder of a model, run folder, name on the hub, or FILE.py:build, which makes a torch.nn.Module",
        positional=True,
    )
    example: str | None = option(
        None, "with FILE.py:build: a .pt file with a batch, or a name in FILE.py that gives one"
    )
    data: str | None = option(None, "text, .jsonl or .npz file, or dataset name; without it, a built-in sample")
    tokenizer: str | None = option(None, "folder or name of a tokenizer; without it, the model's own")
    architecture: str | None = option(None, "model class, such as BertForMaskedLM; without it, what the config names")
    trust_remote_code: bool = option(False, "run the code that comes with the model; read it first")
    sequences: int = option(16, "number of sequences or images")
    length: int = option(256, "tokens in each sequence")
    batch_size: int = option(1, "sequences that run at once")
    device: str = option("cpu", "where the model runs: cpu, cuda, mps")
    dtype: Literal["float32", "bfloat16", "float16"] | None = option(None, "of the weights; without it, as saved")
    out: Path | None = option(None, "folder for tables, page and saved diagnosis (default: uncollapse-diagnosis-NAME)")
    json: bool = option(False, "print verdicts and tables as JSON, and write no files unless --out is given")
    baseline: Path | None = option(None, "saved diagnosis of an earlier model: say what got worse, by head")
    fail_on: Literal["collapse", "worse"] | None = option(
        None,
        f"exit with {COLLAPSED} if there is a collapse, {NOT_MEASURED} if something was not measured, and with "
        f"'worse' also {WORSE} if a head is worse than in --baseline",
    )
    force: bool = option(False, "replace the files of an earlier diagnosis")


def run(settings: DiagnoseOptions) -> int:
    """Load, measure, print, write."""
    from uncollapse.diagnosis.baseline import worse

    if settings.sequences < 1 or settings.length < 2 or settings.batch_size < 1:
        raise UserError(
            f"--sequences must be at least 1 and --length 2 and --batch_size 1, got {settings.sequences}, "
            f"{settings.length} and {settings.batch_size}."
        )
    out = settings.out
    if out is None and not settings.json:
        out = Path(f"uncollapse-diagnosis-{Path(settings.model).resolve().name.replace(':', '-')}")
    old = None if settings.baseline is None else _baseline(settings.baseline)
    if settings.fail_on == "worse" and old is None:
        raise UserError("--fail-on worse needs --baseline, a saved diagnosis of an earlier model.")
    if out is None:
        report = _measure(settings)
    else:
        with output_folder(out, settings.force) as folder:  # refuses before any work is done
            report = _measure(settings)
            for name, table in report.tables.items():
                table.to_csv(folder / f"{name}.csv", index=False)
            report.save(folder / "diagnosis")
            report.to_html(folder / "report.html")
    changes = [] if old is None else worse(report, old)
    if settings.json:
        print(json.dumps(_as_json(report) | {"worse": changes}, indent=1, allow_nan=False))
    else:
        print(printable(str(report)))
    if old is not None and not settings.json:
        told = [f"- {sentence}" for sentence in changes] or ["- nothing, beyond the noise of the samples"]
        print(printable("\n".join([f"\nWorse than {old.info.get('model', 'before')}:", *told])))
    if out is not None:
        print(f"\npage: {out / 'report.html'} (tables as CSV and the saved diagnosis beside it)", file=sys.stderr)
    return _exit_code(settings, report, changes)


def _baseline(path: Path) -> Diagnosis:
    from uncollapse.diagnosis import Diagnosis

    folder = saved_diagnosis(path)
    if folder is None:
        raise UserError(
            f"{path} holds no saved diagnosis (diagnosis.json); give a folder that uncollapse diagnose wrote before."
        )
    return Diagnosis.load(folder)


def _exit_code(settings: DiagnoseOptions, report: Diagnosis, changes: list[str]) -> int:
    """What scripts are told; a sample that the model cannot read makes every other answer worthless."""
    kinds = [verdict.kind for verdict in report.verdicts]
    if "unreadable sample" in kinds:
        return UNREADABLE
    if settings.fail_on is None:
        return 0
    if any(verdict.is_collapse for verdict in report.verdicts):
        return COLLAPSED
    if settings.fail_on == "worse" and changes:
        return WORSE
    return NOT_MEASURED if "not measured" in kinds else 0


def _measure_python_model(settings: DiagnoseOptions) -> Any:
    from uncollapse.diagnosis import diagnose

    given = {"data", "tokenizer", "architecture", "dtype", "device"} & {
        field.name for field in fields(settings) if getattr(settings, field.name) != field.default
    }
    if given:
        raise UserError(
            f"--{min(given)} does not go with FILE.py:build: the file makes the model, and --example gives its batches."
        )
    model, batches = load_python_model(settings.model, settings.example)
    report = diagnose(model, batches)
    report.info["sample"] = Path(settings.example or "").name  # without the folders above it
    return report


def _measure(settings: DiagnoseOptions) -> Any:
    if is_python_model(settings.model):
        return _measure_python_model(settings)
    if settings.example is not None:
        raise UserError("--example goes with a model that is named as FILE.py:build.")
    from transformers.utils.logging import disable_progress_bar

    from uncollapse.diagnosis.model_pass import measure
    from uncollapse.diagnosis.sample import joined

    for library in ("transformers", "huggingface_hub"):  # their messages would repeat our own sentence
        logging.getLogger(library).setLevel(logging.ERROR)
    if not sys.stderr.isatty():
        disable_progress_bar()  # type: ignore[no-untyped-call]
    model = load_model(settings.model, settings.architecture, settings.trust_remote_code, settings.dtype)
    try:
        model = model.to(settings.device)
    except (RuntimeError, AssertionError) as error:
        raise UserError(f"--device {settings.device} cannot be used: {' '.join(str(error).split())[:200]}") from error
    sample = _sample(model, settings)
    sample.batches = joined(sample.batches, settings.batch_size)
    try:
        return measure(model, sample)
    except (OSError, ValueError):
        raise
    except Exception as error:  # of the model's own code: a config may describe a model that can be built but not run
        reason = " ".join(str(error).split())[:300]
        raise UserError(f"{settings.model} cannot be run: {type(error).__name__}: {reason}") from error


def _sample(model: Any, settings: DiagnoseOptions) -> Any:
    from uncollapse.data.batches import load_batches
    from uncollapse.diagnosis.sample import sample_for, sample_of

    if settings.data is None:
        return sample_for(model, settings.tokenizer, settings.sequences, settings.length)
    batches = load_batches(model, settings.data, settings.tokenizer, settings.sequences, settings.length)
    return sample_of(model, batches, Path(settings.data).name, settings.tokenizer)


def load_model(name: str, architecture: str | None, trust_remote_code: bool, dtype: str | None = None) -> Any:
    """The model in a folder, in a run folder's `model`, or on the hub."""
    import transformers

    from uncollapse.remedies import from_pretrained

    path = Path(name)
    if (path / "model" / "config.json").is_file():
        path = path / "model"
    if path.is_dir() and not (path / "config.json").is_file():
        raise UserError(f"{path} is not the folder of a model: it has no config.json.")
    auto_class = None
    if architecture is not None:
        auto_class = getattr(transformers, architecture, None)
        if auto_class is None:
            raise UserError(f"transformers has no class {architecture!r}; name one such as BertForMaskedLM.")
    where = str(path) if path.is_dir() else name
    try:
        with warnings.catch_warnings(record=True) as said:
            model = from_pretrained(where, auto_class, trust_remote_code=trust_remote_code, dtype=dtype or "auto")
    except (OSError, ValueError) as error:
        raise UserError(_why_not_loaded(name, path, str(error))) from error
    for warning in said:
        print(f"uncollapse diagnose: {printable(str(warning.message))}", file=sys.stderr)
    return model


def _why_not_loaded(name: str, path: Path, reason: str) -> str:
    reason = " ".join(reason.split())
    if "Unrecognized model" in reason:
        return f"the config of {name} does not say which model it is; name its class with --architecture."
    if path.is_dir():
        return reason if str(path) in reason else f"{name} cannot be loaded: {reason[:300]}"
    return (
        f"there is no folder {name}, and the hub has no such model or cannot be reached; "
        "give the path of a folder that save_pretrained wrote."
    )


def _as_json(report: Any) -> dict[str, Any]:
    def rows(table: Any) -> list[dict[str, Any]]:
        result: list[dict[str, Any]] = json.loads(table.to_json(orient="records", double_precision=10))  # NaN: null
        return result

    return {
        "info": report.info,
        "verdicts": [
            {"kind": v.kind, "sentence": v.sentence, "layers": v.layers, "heads": v.heads, "remedy": v.remedy}
            for v in report.verdicts
        ],
        "missing": report.missing,
        "notes": report.notes,
        "layers": rows(report.layers),
        "heads": rows(report.heads),
    }


COMMAND = Command(
    name="diagnose",
    summary="Find the layers and heads of a model that have collapsed, in one pass over some data: rank, similarity, "
    "entropy, logits, spectrum and signal propagation.",
    example="uncollapse diagnose path/to/model --data text.txt --fail-on collapse",
    options=DiagnoseOptions,
    run=run,
)
