"""A stand-in for torchvision, which packages import for images and which does not import beside CPU torch."""

import importlib.machinery
import sys
from types import ModuleType


class _Empty(type):
    """A class whose names stand for themselves, as those of an enumeration do."""

    def __getattr__(cls, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return f"{cls.__name__}.{name}"


class _Anything(ModuleType):
    """A module all of whose names are classes that do nothing."""

    __path__ = ()

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        value = _Empty(name, (), {"__init__": lambda self, *args, **kwargs: None})
        setattr(self, name, value)
        return value


class _Finder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name.split(".")[0] == "torchvision":
            return importlib.machinery.ModuleSpec(name, _Finder, is_package=True)
        return None

    @staticmethod
    def create_module(spec):
        return _Anything(spec.name)

    @staticmethod
    def exec_module(module):
        module.__version__ = "0.0"


def stub_torchvision():
    """Let `import torchvision` succeed; nothing of it is used."""
    try:
        import torchvision  # noqa: F401
    except Exception:
        for name in [name for name in sys.modules if name.split(".")[0] == "torchvision"]:
            del sys.modules[name]
        sys.meta_path.insert(0, _Finder)
