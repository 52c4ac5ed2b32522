"""Imports point one way, only report/ prints, only cli.py exits, and the command line starts without torch."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "trt_spec"
# A room may import itself and rooms of a lower rank. Rooms of equal rank know nothing of each other.
RANKS = {
    "errors": 0,
    "atomic": 0,
    "methods": 0,
    "config": 1,
    "provenance": 2,
    "checkpoints": 3,
    "runtime": 4,
    "engines": 5,
    "triton": 5,
    "training": 5,
    "report": 6,
    "run": 7,
    "clients": 8,
    "serve": 9,
    "equivalence": 9,
    "gate": 9,
    "tuning": 9,
    "bench": 10,
    "doctor": 10,
    # the command line
    "cli": 11,
    "__main__": 12,
}
MODULES = sorted(path for path in PACKAGE.rglob("*.py") if path != PACKAGE / "__init__.py")
# Files that are emitted and run inside Triton's stub may use what the server offers there.
IDS = [str(path.relative_to(PACKAGE)) for path in MODULES]


def room(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imported_rooms(tree: ast.AST) -> set[str]:
    """Rooms of trt_spec that a module imports, also inside functions."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative imports hide the layer"
            names |= {
                f"{node.module}.{alias.name}" if node.module == "trt_spec" else node.module for alias in node.names
            }
    return {name.split(".")[1] for name in names if name.startswith("trt_spec.")}


@pytest.mark.parametrize("path", MODULES, ids=IDS)
def test_imports_point_down(path):
    own = room(path)
    wrong = [
        other for other in imported_rooms(ast.parse(path.read_text())) if other != own and RANKS[other] >= RANKS[own]
    ]
    assert wrong == []


@pytest.mark.parametrize("path", MODULES, ids=IDS)
def test_only_report_prints_and_only_cli_exits(path):
    calls = {ast.unparse(node.func) for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)}
    if room(path) != "report":
        assert "print" not in calls
    if room(path) != "cli":
        assert not calls & {"sys.exit", "exit", "quit", "os._exit"}


def imports_tensorrt_llm(node: ast.AST) -> bool:
    names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
    names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
    return any(name.split(".")[0] == "tensorrt_llm" for name in names)


def test_one_module_imports_tensorrt_llm_and_only_when_it_is_asked_to():
    trees = {path: ast.parse(path.read_text()) for path in MODULES}
    users = [path for path, tree in trees.items() if any(map(imports_tensorrt_llm, ast.walk(tree)))]
    assert [str(path.relative_to(PACKAGE)) for path in users] == ["triton/trtllm/adapter.py"]
    assert not any(map(imports_tensorrt_llm, trees[users[0]].body))


@pytest.mark.parametrize("module", ["trt_spec.cli.app", "trt_spec.config.loader", "trt_spec.config.schema"])
def test_starts_without_torch(module):
    code = f"import sys, {module}; print([name for name in ('torch', 'transformers') if name in sys.modules])"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"
