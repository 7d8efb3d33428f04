"""Where tests look for real data."""

import os

import pytest

needs_data = pytest.mark.skipif("UNCOLLAPSE_DATA" not in os.environ, reason="UNCOLLAPSE_DATA is not set")
