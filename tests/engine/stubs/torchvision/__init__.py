"""Import-only stand-in for torchvision, which no text model calls: any name exists, calling it raises."""

import importlib.abc
import importlib.machinery
import sys

__version__ = "0.0.0"


class _AnyName(type):
    def __getattr__(cls, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return cls


class Missing(metaclass=_AnyName):
    def __init__(self, *_args, **_kwargs):
        raise NotImplementedError("torchvision has only a stand-in in tests/engine/stubs")


def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(name)
    return Missing


class _AnySubmodule(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path=None, target=None):
        if name.startswith("torchvision."):
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec):
        return None

    def exec_module(self, module):
        module.__getattr__ = __getattr__
        module.__path__ = []


sys.meta_path.append(_AnySubmodule())
