"""Kernels need Triton, a requirement for development on Linux. Without it the tests are skipped and say why."""

from importlib.util import find_spec

if find_spec("triton") is None:
    collect_ignore_glob = ["[!t]*.py"]  # what the tests use, and what pytest would look into for examples
