"""Scripts and benchmarks of the checkout, imported as modules."""

import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parent.parent


def load_script(file: str) -> ModuleType:
    """Import a file of the checkout, such as `scripts/golden.py`, as a fresh module."""
    name = file.removesuffix(".py").replace("/", "_")
    spec = importlib.util.spec_from_file_location(name, ROOT / file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look up their module
    spec.loader.exec_module(module)
    return module


def import_bench(name: str) -> ModuleType:
    """Import a module of bench/ that its scripts share, such as `simulation.pipeline`."""
    folder = str(ROOT / "bench")
    sys.path.insert(0, folder)
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(folder)
