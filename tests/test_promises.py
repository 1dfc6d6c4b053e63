"""What holds for the whole repository: directions of imports, documented options, public names."""

from __future__ import annotations

import ast
import importlib.util
import inspect
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import samovar
from samovar import errors
from samovar.config import OPTIONS, OTHER_VARIABLES
from samovar.text.template import ChatTemplate

ROOT = Path(__file__).parent.parent
SOURCES = sorted((ROOT / "src/samovar").rglob("*.py"))

# Each part, and the parts that it may import; a part may always import itself.
BELOW_ENGINE = {"cache", "models", "grammar", "text", "checkpoint", "errors"}
BELOW_SERVER = {"engine", *BELOW_ENGINE, "hub", "config", "option", "log", "__init__"}
MAY_IMPORT: dict[str, set[str]] = {
    "errors": set(),
    "cache": set(),
    "log": set(),
    "option": {"errors"},
    "checkpoint": {"errors"},
    "hub": {"cache", "checkpoint", "errors"},
    "text": {"checkpoint", "errors"},
    "grammar": {"text", "checkpoint", "errors"},
    "models": {"checkpoint", "errors"},
    "engine": BELOW_ENGINE,
    "config": {"option", "errors", "engine", "log"},  # gives the engine's parameters their values
    "server": BELOW_SERVER,
    "scale": BELOW_SERVER,
    "cli": {"server", "scale", *BELOW_SERVER},
    "__main__": {"cli"},
    "__init__": {"engine", "errors"},
}


def imported_modules(path: Path) -> Iterator[str]:
    """Every module that the file imports anywhere, as a dotted name."""
    for node in ast.walk(ast.parse(path.read_text(), filename=str(path))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            assert node.module is not None
            # `from samovar import hub` imports samovar.hub.
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            yield from names if node.module == "samovar" else [node.module]


def part_of(module: str) -> str | None:
    """The part of samovar that a dotted name belongs to; None for other packages."""
    package, _, rest = module.partition(".")
    if package != "samovar":
        return None
    part = rest.partition(".")[0]
    return part if part in MAY_IMPORT or part == "_native" else "__init__"


def relative(path: Path) -> str:
    return path.relative_to(ROOT / "src/samovar").as_posix()


@pytest.mark.parametrize("path", SOURCES, ids=relative)
def test_imports_point_one_way(path: Path) -> None:
    own = path.relative_to(ROOT / "src/samovar").parts[0].removesuffix(".py")
    assert own in MAY_IMPORT, f"{own} is a new part: say here what it may import"
    for module in imported_modules(path):
        part = part_of(module)
        if part == "_native":
            assert own in ("engine", "models", "checkpoint"), f"{own} imports the native module"
        elif part is not None:
            assert part == own or part in MAY_IMPORT[own], f"{own} imports {module}"


def test_asyncio_in_the_engine_stands_in_one_file() -> None:
    users = {
        relative(path)
        for path in SOURCES
        if relative(path).startswith("engine/")
        and any(name.partition(".")[0] in ("asyncio", "anyio") for name in imported_modules(path))
    }
    assert users <= {"engine/async_engine.py"}


def test_architectures_do_not_import_each_other() -> None:
    registry = ROOT / "src/samovar/models/registry.py"
    tree = ast.parse(registry.read_text())
    architectures = {
        f"samovar.models.{alias.name}"
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module == "samovar.models"
        for alias in node.names
    }
    assert len(architectures) >= 2
    for path in SOURCES:
        if path == registry or not relative(path).startswith("models/"):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom):
                names = {f"{node.module}.{alias.name}" for alias in node.names} | {node.module}
                assert not names & architectures, f"{relative(path)} imports an architecture"


def test_no_file_is_a_drawer_for_anything() -> None:
    names = {path.stem for path in SOURCES} | {path.parent.name for path in SOURCES}
    assert not names & {"utils", "util", "common", "helpers", "misc"}


def test_the_options_page_is_the_table_of_settings() -> None:
    location = ROOT / "scripts/options_page.py"
    spec = importlib.util.spec_from_file_location("options_page", location)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    written = (ROOT / "docs/reference/options.md").read_text()
    assert written == module.page(), "run scripts/options_page.py"
    for option in OPTIONS:
        assert f"`{option.flag}`" in written
        assert f"`{option.variable}`" in written


def test_help_names_what_an_option_takes() -> None:
    shown = {option.name: set(re.findall(r"[\w.-]+", option.help)) for option in OPTIONS}
    assert set(ChatTemplate.names()) <= {name.rstrip(".") for name in shown["chat_template"]}
    tables = (ROOT / "native/isa").glob("*.cc")
    assert {path.stem for path in tables} <= shown["isa"]


def test_every_variable_that_the_sources_name_is_documented() -> None:
    known = {option.variable for option in OPTIONS} | set(OTHER_VARIABLES)
    for path in SOURCES:
        for name in re.findall(r"[\"'`](SAMOVAR_[A-Z_]+)[\"'`]", path.read_text()):
            assert name in known, f"{relative(path)} names {name}"


def test_public_names() -> None:
    assert {"AsyncEngine", "Engine", "SamplingParams"} <= set(samovar.__all__)
    assert samovar.__version__
    for name in samovar.__all__:
        assert getattr(samovar, name) is not None
    with pytest.raises(AttributeError):
        samovar.nothing_of_the_kind  # noqa: B018


def test_importing_samovar_is_cheap() -> None:
    code = (
        "import sys, samovar, samovar.cli.app; samovar.cli.app.command();"
        "print([m for m in ('numpy', 'tokenizers', 'uvicorn', 'fastapi', 'jinja2', 'asyncio',"
        " 'samovar._native') if m in sys.modules])"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert result.stdout.strip() == "[]"


def test_every_error_is_drawn_in_the_tree() -> None:
    drawing = errors.__doc__ or ""
    classes = [c for _, c in inspect.getmembers(errors, inspect.isclass)]
    for error in classes:
        assert issubclass(error, errors.SamovarError)
        assert re.search(rf"\b{error.__name__}\b", drawing)
