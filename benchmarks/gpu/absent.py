# SPDX-License-Identifier: Apache-2.0
"""Empty modules for packages that SGLang imports at start and never uses here. On the box it is a ``sitecustomize``."""

import importlib.abc
import importlib.machinery
import sys
import types

ABSENT = frozenset({"llguidance", "modelscope", "outlines", "outlines_core"})


class EmptyModule(types.ModuleType):
    """Any attribute of it is a class of that name."""

    __path__ = ()

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {"__init__": lambda self, *args, **kwargs: None})


class AbsentFinder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds the absent packages and everything below them."""

    def find_spec(self, fullname, path=None, target=None):
        """Only after all other finders had their turn."""
        if fullname.partition(".")[0] not in ABSENT:
            return None
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec):
        """An empty one."""
        return EmptyModule(spec.name)

    def exec_module(self, module):
        """Nothing to run."""


sys.meta_path.append(AbsentFinder())
