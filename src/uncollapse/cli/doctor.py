"""`uncollapse doctor`: what this machine has and lacks, in a form to paste into a bug report."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, packages_distributions, version
from importlib.util import find_spec
from pathlib import Path

from uncollapse import __version__
from uncollapse.extras import EXTRA_OF
from uncollapse.files import cache_root, printable

from .command import Command

CORE = ("torch", "numpy", "pandas", "tqdm")
VARIABLES = (  # that change what runs; no others are printed, since they may hold secrets
    *("UNCOLLAPSE_CACHE", "UNCOLLAPSE_DATA", "UNCOLLAPSE_NATIVE", "UNCOLLAPSE_TRITON", "TRITON_INTERPRET"),
    *("OMP_NUM_THREADS", "MKL_NUM_THREADS", "CUDA_VISIBLE_DEVICES", "HF_HOME", "HF_HUB_OFFLINE", "CXX"),
    *("WORLD_SIZE", "RANK", "XDG_CACHE_HOME"),
)


@dataclass(frozen=True)
class DoctorOptions:
    """`uncollapse doctor` has no options."""


def run(settings: DoctorOptions) -> int:
    """Print every section; one that fails says so, and the others follow."""
    for title, section in SECTIONS.items():
        print(title)
        try:
            for line in section():
                print(f"  {printable(without_home(line))}", flush=True)
        except Exception as error:  # a broken installation is what this command is for
            first = (str(error).splitlines() or [""])[0]
            print(f"  could not be asked: {printable(without_home(f'{type(error).__name__}: {first}'))}")
    return 0


def without_home(text: str) -> str:
    """A text in which the home folder, and with it the user's name, is written as ~."""
    home = str(Path.home())
    return text if home == os.sep else text.replace(home, "~")


def versions() -> Iterator[str]:
    """uncollapse, Python, the core's packages and the system."""
    yield f"uncollapse {__version__} in {Path(__file__).parents[1]}"
    yield f"Python {platform.python_version()} in {sys.prefix}"
    yield ", ".join(f"{package} {version(package)}" for package in CORE)
    yield platform.platform()


def extras() -> Iterator[str]:
    """What each extra would install, with the version or how to get it."""
    names = packages_distributions()
    for extra in sorted(set(EXTRA_OF.values())):
        packages = [package for package, of in EXTRA_OF.items() if of == extra]
        missing = [package for package in packages if find_spec(package) is None]
        present = [f"{package} {_version(names, package)}" for package in packages if package not in missing]
        line = f"{extra}: {', '.join(present) or 'nothing'}"
        if missing:
            line += f"; missing: {', '.join(missing)} (pip install 'uncollapse[{extra}]')"
        yield line
    studies = _distribution_version("uncollapse-studies")
    yield f"studies: {studies or 'not installed; uncollapse reproduce needs it'}"


def _version(names: Mapping[str, list[str]], package: str) -> str:
    """The version of the distribution that a package belongs to: that of PIL is called pillow."""
    return _distribution_version(names.get(package, [package])[0]) or "of unknown version"


def _distribution_version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def processor() -> Iterator[str]:
    """Processor, threads and memory."""
    from uncollapse.bench.machine import describe_machine

    machine = describe_machine()
    yield f"{machine['processor']}, {machine['vector_instructions']}"
    yield f"{machine['cores']} cores, torch's threads {machine['threads']}, {machine['memory_gb']} GB"


def compiled_tiles() -> Iterator[str]:
    """The C++ compiler, and whether the tiles were built and run."""
    import torch

    import uncollapse as uc
    from uncollapse.attention import compiler

    command = compiler()
    try:
        said = subprocess.run([*command.split(), "--version"], capture_output=True, text=True, timeout=20)
        yield f"compiler: {command}, {(said.stdout or said.stderr).splitlines()[0]}"
    except (OSError, IndexError, subprocess.SubprocessError):
        yield f"compiler: {command} cannot be run; install g++ or clang++, or set CXX"
    q = torch.randn(1, 2, 64, 16)
    with warnings.catch_warnings(record=True) as said_by_us:
        warnings.simplefilter("always")
        _, state = uc.hopfield_attention(q, q, q, is_causal=True)  # builds or loads them
        started = time.perf_counter()
        uc.hopfield_attention(q, q, q, is_causal=True)
    yield f"one layer runs in {state.engine}, {1e3 * (time.perf_counter() - started):.2f} ms for 64 tokens"
    for warning in said_by_us:
        yield f"warning: {warning.message}"


def gpus() -> Iterator[str]:
    """Each GPU, and whether the kernels are used on it."""
    import torch

    from uncollapse.attention.gpu_test import identity, is_verified, obstacle

    cuda, hip = torch.version.cuda, torch.version.hip
    built_for = f"CUDA {cuda}" if cuda else f"HIP {hip}" if hip else "CPUs"
    yield f"torch was built for {built_for}; triton {_distribution_version('triton') or 'is not installed'}"
    count = torch.cuda.device_count()
    if not count:
        yield "no GPU that torch can use"
    for index in range(count):
        device = torch.device("cuda", index)
        about = identity(device)
        reason = obstacle(device)
        tested = "kernels tested here" if is_verified(device) else "kernels not tested here: run uncollapse gpu-test"
        yield f"{index}: {about['device']}, capability {about['capability']}, {about['driver']}; {reason or tested}"


def folders() -> Iterator[str]:
    """The cache, the data, and the models of transformers."""
    cache = cache_root()
    yield f"cache: {cache} ({_described(cache)})"
    for name in sorted(path.name for path in cache.glob("*") if path.is_dir()) if cache.is_dir() else ():
        yield f"  {name}: {_size(cache / name)}"
    data = os.environ.get("UNCOLLAPSE_DATA")
    yield f"data: {f'{data} ({_described(Path(data))})' if data else 'UNCOLLAPSE_DATA is not set'}"
    hub = Path(os.environ.get("HF_HOME") or "~/.cache/huggingface").expanduser()
    yield f"models of the hub: {hub} ({_described(hub)})"


def _described(folder: Path) -> str:
    if not folder.is_dir():
        return "does not exist"
    return "can be written" if os.access(folder, os.W_OK) else "cannot be written"


def _size(folder: Path) -> str:
    sizes = [path.stat().st_size for path in folder.rglob("*") if path.is_file()]
    return f"{len(sizes)} files, {sum(sizes) / 1e6:.1f} MB"


def environment() -> Iterator[str]:
    """The variables that change what runs."""
    found = [f"{name}={os.environ[name]}" for name in VARIABLES if name in os.environ]
    yield from found or ["none of the variables that matter is set"]


SECTIONS: dict[str, Callable[[], Iterator[str]]] = {
    "versions": versions,
    "extras": extras,
    "processor": processor,
    "attention on CPUs": compiled_tiles,
    "GPUs": gpus,
    "folders": folders,
    "environment": environment,
}


COMMAND = Command(
    name="doctor",
    summary="Print versions, compiler, GPUs, folders and what is missing. Paste it all into a bug report; your home "
    "folder is written as ~.",
    example="uncollapse doctor",
    options=DoctorOptions,
    run=run,
)
