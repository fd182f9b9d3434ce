"""The layout of the package: who may import whom, what must stay lazy, how long a module may be."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "velodrome"
MODULES = sorted(PACKAGE.rglob("*.py"))

# A folder imports only from those before it: the way of the data, from files to commands.
ORDER = (
    "errors", "bars", "tables", "envs", "vector", "adapters", "rollout", "learn", "evaluation", "runs", "tune",
    "service", "dashboard", "compat", "bench", "doctor", "cli", "__main__",
)  # fmt: skip
# Heavy or optional packages: imported inside the functions that need them, so that everything else works without.
# Networks and learners are made of torch and may import it at the top; who needs them imports them late.
LAZY = (
    "torch", "stable_baselines3", "torchrl", "tensordict", "torchtrade", "ray", "wandb", "optuna", "fastapi", "uvicorn",
    "sqlalchemy", "matplotlib", "plotext", "pandas", "talib", "plotly", "jinja2", "tensorboard", "onnx", "onnxruntime",
    "pynvml", "pyinstrument", "scipy", "safetensors",
)  # fmt: skip
LONGEST = 600  # lines


def part_of(path: Path) -> str:
    """The entry of ORDER that a module belongs to; '' for the package's own __init__."""
    first = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
    return "" if first == "__init__" else first


def imported(path: Path, *, lazy: bool = True) -> Iterator[tuple[str, int]]:
    """Names of the modules that a file imports, with the line; those in functions too unless `lazy` is false."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    pending: list[ast.AST] = [tree]
    while pending:
        node = pending.pop()
        if not lazy and (isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or is_type_checking(node)):
            continue
        if isinstance(node, ast.Import):
            yield from ((name.name, node.lineno) for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: relative import; write the full name"
            yield str(node.module), node.lineno
            yield from ((f"{node.module}.{name.name}", node.lineno) for name in node.names)
        pending.extend(ast.iter_child_nodes(node))


def is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def name_of(path: Path) -> str:
    return str(path.relative_to(PACKAGE))


@pytest.mark.parametrize("path", [path for path in MODULES if part_of(path)], ids=name_of)
def test_a_module_imports_only_from_folders_above_it(path):
    own = ORDER.index(part_of(path))
    for name, line in imported(path):
        parts = name.split(".")
        if parts[0] != "velodrome" or len(parts) < 2 or parts[1] not in ORDER:
            continue
        assert ORDER.index(parts[1]) <= own, f"{name_of(path)}:{line} imports {name}, which lies below it"


def test_every_folder_and_file_of_the_package_has_a_place_in_the_order():
    assert {part_of(path) for path in MODULES} <= {"", *ORDER}


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_heavy_and_optional_packages_are_imported_lazily(path):
    lazy = set(LAZY) - ({"torch"} if part_of(path) in ("rollout", "learn", "evaluation") else set())
    for name, line in imported(path, lazy=False):
        assert name.split(".")[0] not in lazy, f"{name_of(path)}:{line} imports {name} at the top"


@pytest.mark.parametrize("path", [path for path in MODULES if part_of(path)], ids=name_of)
def test_torch_appears_from_vector_on(path):
    if ORDER.index(part_of(path)) < ORDER.index("vector"):
        assert not [name for name, _ in imported(path) if name.split(".")[0] == "torch"]


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_a_module_is_named_for_what_it_holds_and_short_enough_to_read(path):
    assert path.stem not in ("utils", "util", "helpers", "helper", "misc", "common")
    assert len(path.read_text(encoding="utf-8").splitlines()) <= LONGEST


def test_tests_are_short_enough_to_read():
    lengths = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in Path(__file__).parent.rglob("*.py")}
    assert [str(path) for path, lines in lengths.items() if lines > LONGEST] == []


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_a_module_says_what_it_is(path):
    assert ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))


def test_every_folder_is_a_package():
    folders = {path.parent for path in MODULES}
    assert all((folder / "__init__.py").is_file() for folder in folders)


def test_examples_are_few_and_short():
    examples = sorted((PACKAGE.parent / "examples").glob("*.py"))
    assert 1 <= len(examples) <= 8
    assert all(len(path.read_text(encoding="utf-8").splitlines()) < 100 for path in examples)
