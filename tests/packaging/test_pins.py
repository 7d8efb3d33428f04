"""What is tested together is written down: all of it, with hashes, and within the bounds that users install by."""

import re
import tomllib
from importlib.metadata import PackageNotFoundError, distribution, version
from itertools import chain
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).resolve().parents[2]
PINS = re.compile(r"^(?P<name>[\w.-]+)==(?P<version>[\w.]+)(?: --hash=sha256:(?P<digest>[0-9a-f]{64}))?$")
OURS = {"uncollapse", "uncollapse-studies"}


def pins(file):
    """Canonical name -> version and hash of each line."""
    lines = [line for line in (ROOT / file).read_text().splitlines() if not line.startswith("#")]
    found = [PINS.match(line) for line in lines]
    assert all(found), f"{file} has a line that pins nothing"
    return {canonicalize_name(pin["name"]): (pin["version"], pin["digest"]) for pin in found}


def declared():
    """All requirements in the two pyproject.toml, whatever the extra."""
    for file in ("pyproject.toml", "studies/pyproject.toml"):
        project = tomllib.loads((ROOT / file).read_text())["project"]
        texts = chain(project.get("dependencies", ()), *project.get("optional-dependencies", {}).values())
        yield from (need for text in texts if canonicalize_name((need := Requirement(text)).name) not in OURS)


def with_their_own(needs, seen):
    """The requirements and what they bring with them in the installed versions: names."""
    for need in needs:
        wanted = (canonicalize_name(need.name), frozenset(need.extras))
        if wanted not in seen:
            seen.add(wanted)
            with_their_own(applicable(*wanted), seen)
    return {name for name, _ in seen}


def applicable(name, extras):
    needs = map(Requirement, distribution(name).requires or [])
    return [n for n in needs if not n.marker or any(n.marker.evaluate({"extra": extra}) for extra in ("", *extras))]


def test_everything_that_is_installed_for_development_is_pinned():
    assert with_their_own(declared(), set()) <= pins("constraints.txt").keys()


def test_the_pins_are_what_the_tests_run_with():
    def installed(name):
        try:
            return Version(version(name)).public
        except PackageNotFoundError:
            return None  # for building only

    pinned = pins("constraints.txt")
    other = {name: (pin, installed(name)) for name, (pin, _) in pinned.items() if installed(name) not in (None, pin)}
    assert not other, f"pinned and installed versions differ: {other}; install again with make"


def test_the_lock_file_has_a_hash_for_each_pin():
    locked = pins("requirements.lock")
    assert {name: pin for name, (pin, _) in locked.items()} == {
        n: pin for n, (pin, _) in pins("constraints.txt").items()
    }
    assert all(digest for _, digest in locked.values())


@pytest.mark.parametrize("package", ["torch", "transformers", "accelerate"])
def test_packages_whose_private_names_are_used_have_an_upper_bound(package):
    """Their next major version may have other ones; see test_private_names.py."""
    needs = [need for need in declared() if need.name == package]
    bound = f"{Version(version(package)).major + 1}.0"
    assert needs
    assert all(need.specifier.contains(version(package)) and not need.specifier.contains(bound) for need in needs)
