"""The house rules a tool can check: sizes, owner sentences, environment reads, imports, links, telemetry names."""

import ast
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SERVICES = ROOT / "services"
SOURCES = sorted(SERVICES.rglob("*.py"))
MAX_FILE_LINES = 600
MAX_FILE_LINES_KERNEL = 800
MAX_FUNCTION_LINES = 80
MAX_FUNCTION_LINES_KERNEL = 150
MAX_ARGUMENTS = 7
DRAWER_NAMES = {"utils.py", "helpers.py", "common.py", "misc.py", "util.py"}


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def is_kernel(path: Path) -> bool:
    return path.name == "triton.py" or "cpu" in path.relative_to(SERVICES).parts


def functions(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


@pytest.mark.parametrize("path", SOURCES, ids=relative)
def test_file_has_owner_sentence_and_fits(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    limit = MAX_FILE_LINES_KERNEL if is_kernel(path) else MAX_FILE_LINES
    assert text.count("\n") <= limit, f"{relative(path)} has over {limit} lines: split it"
    assert path.name not in DRAWER_NAMES, f"{relative(path)}: name it after what it owns"
    assert ast.get_docstring(ast.parse(text)), f"{relative(path)} lacks its owner sentence"


@pytest.mark.parametrize("path", SOURCES, ids=relative)
def test_functions_fit(path: Path) -> None:
    limit = MAX_FUNCTION_LINES_KERNEL if is_kernel(path) else MAX_FUNCTION_LINES
    for node in functions(ast.parse(path.read_text(encoding="utf-8"))):
        assert node.end_lineno is not None
        num_lines = node.end_lineno - node.lineno + 1
        assert num_lines <= limit, f"{relative(path)}:{node.name} has {num_lines} lines, the limit is {limit}"
        arguments = [a.arg for a in node.args.posonlyargs + node.args.args + node.args.kwonlyargs]
        num_arguments = len([a for a in arguments if a not in ("self", "cls")])
        assert num_arguments <= MAX_ARGUMENTS, f"{relative(path)}:{node.name} takes {num_arguments} arguments"


@pytest.mark.parametrize("path", SOURCES, ids=relative)
def test_public_functions_have_docstrings(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    scopes: list[tuple[str, list[ast.stmt]]] = [("", tree.body)]
    scopes += [(f"{n.name}.", n.body) for n in tree.body if isinstance(n, ast.ClassDef) and not n.name.startswith("_")]
    for prefix, body in scopes:
        for node in body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and node.name[0] != "_":
                assert ast.get_docstring(node), f"{relative(path)}: {prefix}{node.name} lacks a docstring"


def reads_environment(node: ast.AST) -> bool:
    if isinstance(node, ast.Attribute):
        return node.attr in ("environ", "getenv", "environb") and isinstance(node.value, ast.Name)
    return (
        isinstance(node, ast.ImportFrom)
        and node.module == "os"
        and any(a.name in ("environ", "getenv") for a in node.names)
    )


@pytest.mark.parametrize("path", [p for p in SOURCES if p.name != "settings.py"], ids=relative)
def test_environment_is_read_in_settings_only(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        assert not reads_environment(node), f"{relative(path)}:{getattr(node, 'lineno', 0)} reads the environment"


def module_names() -> list[str]:
    names = []
    for path in SOURCES:
        parts = list(path.relative_to(SERVICES).with_suffix("").parts)
        if parts[-1] == "__main__":
            continue
        names.append(".".join(parts[:-1] if parts[-1] == "__init__" else parts))
    return names


IMPORT_PROBE = """
import importlib, socket, sys, threading
def refuse(*a, **k): raise RuntimeError("network at import")
socket.socket.connect = refuse
socket.getaddrinfo = refuse
before = threading.active_count()
for name in sys.argv[1:]:
    importlib.import_module(name)
    if threading.active_count() > before: raise SystemExit(f"{name} starts a thread at import")
"""


def test_modules_import_with_an_empty_environment() -> None:
    environment = {"PATH": os.defpath, "PYTHONPATH": str(SERVICES), "HOME": "/nonexistent"}
    done = subprocess.run(
        [sys.executable, "-c", IMPORT_PROBE, *module_names()],
        env=environment, cwd="/", capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout == "", "a module prints at import"


def test_imports_obey_the_layers() -> None:
    done = subprocess.run(
        [Path(sys.executable).with_name("lint-imports"), "--no-cache"],
        env=os.environ | {"PYTHONPATH": str(SERVICES)}, cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout


def documents() -> list[Path]:
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), *sorted(SERVICES.rglob("*.md"))]


@pytest.mark.parametrize("document", documents(), ids=relative)
def test_document_links_exist(document: Path) -> None:
    text = document.read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", text):
        if "://" not in target:
            assert (document.parent / target).exists(), f"{relative(document)} links to {target}"


def test_telemetry_names_are_spelt_in_the_registry_only() -> None:
    pattern = re.compile(r"^(soloist|gen_ai)\.[a-z_.]+$")
    for path in SOURCES:
        if relative(path) == "services/contracts/telemetry.py":
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                assert not pattern.match(node.value), f"{relative(path)}:{node.lineno} spells {node.value}"


def test_every_version_is_pinned() -> None:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = [line for line in lines if line and not line.startswith("#")]
    assert pins == sorted(pins, key=str.lower)
    assert all(re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9.]+", pin) for pin in pins), "one exact pin a line"


def test_repository_names_no_registry_host() -> None:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    forbidden = re.compile(rb"files\.pythonhosted|pypi\.org|registry\.npmjs|deb\.debian\.org|download\.pytorch")
    for name in listed:
        path = ROOT / name
        if path.is_file() and path != Path(__file__):
            assert not forbidden.search(path.read_bytes()), f"{name} names a package registry's host"
