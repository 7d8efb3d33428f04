"""Marks of tests that need an optional dependency, so that the others can run with the core alone."""

from importlib.util import find_spec

import pytest

needs_scipy = pytest.mark.skipif(find_spec("scipy") is None, reason="needs scipy, which the core does not install")
