"""The layout of the package: who may import whom, what must stay lazy, how long a module may be."""

from __future__ import annotations

import ast
import functools
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "velodrome"
MODULES = sorted(PACKAGE.rglob("*.py"))

# A folder imports only from those before it: the way of the data, from files to commands.
ORDER = (
    *(
        "errors",
        "outside",
        "writing",
        "registry",
        "turns",
        "bars",
        "tables",
        "envs",
        "vector",
        "adapters",
        "rollout",
        "learn",
        "evaluation",
        "runs",
    ),
    *("tune", "service", "dashboard", "compat", "bench", "doctor", "cli", "__main__"),
)
# Heavy or optional packages: imported inside the functions that need them, so that everything else works without.
# Networks and learners are made of torch and may import it at the top; who needs them imports them late.
LAZY = (
    *("torch", "stable_baselines3", "torchrl", "tensordict", "torchtrade", "ray", "wandb", "optuna", "fastapi"),
    *("uvicorn", "sqlalchemy", "matplotlib", "plotext", "pandas", "talib", "plotly", "jinja2", "tensorboard", "onnx"),
    *("finrl", "pufferlib", "elegantrl", "onnxruntime"),
    *("pynvml", "amdsmi", "jax", "pyinstrument", "scipy", "safetensors"),
)
LONGEST = 600  # lines
MOST = 14  # modules at one level of a folder
FOLDERS = sorted({path.parent for path in MODULES} - {PACKAGE})


@functools.cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def part_of(path: Path) -> str:
    """The entry of ORDER that a module belongs to; '' for the package's own __init__."""
    first = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
    return "" if first == "__init__" else first


# One test for all modules of a part: two thousand tests of a millisecond would cost seconds.
PARTS = {part: [path for path in MODULES if part_of(path) == part] for part in ("", *ORDER)}
each_part = pytest.mark.parametrize("paths", PARTS.values(), ids=["the package", *ORDER])


def imported(path: Path, *, lazy: bool = True, type_checking: bool = True) -> Iterator[tuple[str, int]]:
    """Names of the modules that a file imports, with the line; those in functions too unless `lazy` is false."""
    pending: list[ast.AST] = [tree_of(path)]
    while pending:
        node = pending.pop()
        if not lazy and (isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or is_type_checking(node)):
            continue
        if not type_checking and is_type_checking(node):
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


@each_part
def test_a_module_imports_only_from_folders_above_it(paths):
    every = [(path, *found) for path in paths if part_of(path) for found in imported(path)]
    for path, name, line in every:
        parts = name.split(".")
        if parts[0] != "velodrome" or len(parts) < 2 or parts[1] not in ORDER:
            continue
        below = ORDER.index(parts[1]) > ORDER.index(part_of(path))
        assert not below, f"{name_of(path)}:{line} imports {name}, which lies below it"


def reading_order(folder: Path) -> list[str]:
    """The modules and sub-folders of a folder in the order in which its docstring says to read them."""
    text = ast.get_docstring(ast.parse((folder / "__init__.py").read_text(encoding="utf-8"))) or ""
    parts = {path.stem for path in folder.glob("*.py")} | {path.parent.name for path in folder.glob("*/__init__.py")}
    named = [name for name in re.findall(r"`(\w+)`", text.partition("Read")[2]) if name in parts]
    return list(dict.fromkeys(named))


@pytest.mark.parametrize("folder", FOLDERS, ids=name_of)
def test_a_folder_says_in_which_order_to_read_it_and_imports_run_that_way(folder):
    parts = {path.stem for path in folder.glob("*.py")} | {path.parent.name for path in folder.glob("*/__init__.py")}
    order = reading_order(folder)
    assert set(order) == parts - {"__init__"}, "the docstring names each part after the word Read, in backticks"
    within = ("velodrome", *folder.relative_to(PACKAGE).parts)
    for path in (path for path in folder.rglob("*.py") if path != folder / "__init__.py"):
        own = order.index(path.relative_to(folder).parts[0].removesuffix(".py"))
        for name, line in imported(path, type_checking=False):
            parts_of_name = tuple(name.split("."))
            if parts_of_name[: len(within)] != within or len(parts_of_name) == len(within):
                continue
            part = parts_of_name[len(within)]
            if part in order:
                assert order.index(part) <= own, f"{name_of(path)}:{line} imports {name}, which is read after it"


@pytest.mark.parametrize("folder", FOLDERS, ids=name_of)
def test_a_folder_can_be_taken_in_at_a_glance(folder):
    names = [path.stem for path in folder.glob("*.py") if path.stem != "__init__"]
    assert len(names) <= MOST
    prefixes = Counter(name.split("_")[0] for name in names if "_" in name.strip("_"))
    assert [prefix for prefix, count in prefixes.items() if count >= 3] == []


@each_part
def test_private_names_stay_in_their_folder(paths):
    nodes = [(path, node) for path in paths if part_of(path) for node in ast.walk(tree_of(path))]
    for path, node in nodes:
        if not isinstance(node, ast.ImportFrom):
            continue
        parts = str(node.module).split(".")
        if parts[0] != "velodrome" or len(parts) < 2 or parts[1] == part_of(path):
            continue
        private = [name.name for name in node.names if name.name.startswith("_") and name.name != "__version__"]
        assert private == [], f"{name_of(path)}:{node.lineno}"


def test_the_formatter_decides():
    skips = sum(path.read_text(encoding="utf-8").count("fmt: skip") for path in MODULES)
    assert skips < 30


def test_every_folder_and_file_of_the_package_has_a_place_in_the_order():
    assert {part_of(path) for path in MODULES} <= {"", *ORDER}


@each_part
def test_heavy_and_optional_packages_are_imported_lazily(paths):
    for path in paths:
        lazy = set(LAZY) - ({"torch"} if part_of(path) in ("rollout", "learn", "evaluation") else set())
        for name, line in imported(path, lazy=False):
            assert name.split(".")[0] not in lazy, f"{name_of(path)}:{line} imports {name} at the top"


@pytest.mark.parametrize("part", ORDER[: ORDER.index("vector")])
def test_torch_appears_from_vector_on(part):
    names = [(name_of(path), name) for path in PARTS[part] for name, _ in imported(path)]
    assert [found for found in names if found[1].split(".")[0] == "torch"] == []


@each_part
def test_a_module_is_named_for_what_it_holds_and_short_enough_to_read(paths):
    for path in paths:
        assert path.stem not in ("utils", "util", "helpers", "helper", "misc", "common"), name_of(path)
        assert len(path.read_text(encoding="utf-8").splitlines()) <= LONGEST, name_of(path)


def test_tests_are_short_enough_to_read():
    lengths = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in Path(__file__).parent.rglob("*.py")}
    assert [str(path) for path, lines in lengths.items() if lines > LONGEST] == []


@each_part
def test_a_module_says_what_it_is(paths):
    assert [name_of(path) for path in paths if not ast.get_docstring(tree_of(path))] == []


def test_every_folder_is_a_package():
    folders = {path.parent for path in MODULES}
    assert all((folder / "__init__.py").is_file() for folder in folders)


def test_examples_are_few_and_short():
    examples = sorted((PACKAGE.parent / "examples").glob("*.py"))
    assert 1 <= len(examples) <= 10
    assert all(len(path.read_text(encoding="utf-8").splitlines()) < 100 for path in examples)
