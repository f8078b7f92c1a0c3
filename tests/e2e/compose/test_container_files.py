"""What the compose files, Dockerfiles and requirement lists must say, checked without Docker."""

import ast
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[3]
SERVICES = ("engine", "gateway")
# Import name to the listed distribution that brings it, where they differ.
DISTRIBUTIONS = {
    "pynvml": "nvidia-ml-py",
    "opentelemetry": "opentelemetry-sdk",
    "prometheus_client": "opentelemetry-exporter-prometheus",
    "starlette": "fastapi",
}
# Bench peers and kernels: absent from the image or part of torch.
NOT_INSTALLED = {"transformers", "triton"}
# What uvicorn and OpenTelemetry load when it is there.
LOADED_BY_NAME = {"uvloop", "httptools", "opentelemetry-api", "opentelemetry-exporter-otlp-proto-http"}


class _ComposeLoader(yaml.SafeLoader):
    """Safe YAML that knows Compose's merge tag."""


def _construct_reset(loader: yaml.SafeLoader, node: yaml.Node) -> None:
    assert isinstance(node, yaml.SequenceNode) and not node.value, "!reset is used on empty lists only"


_ComposeLoader.add_constructor("!reset", _construct_reset)


def load(name: str) -> dict[str, Any]:
    loaded = yaml.load((ROOT / name).read_text(encoding="utf-8"), _ComposeLoader)
    assert isinstance(loaded, dict)
    return loaded


def services() -> dict[str, dict[str, Any]]:
    listed: dict[str, dict[str, Any]] = load("compose.yaml")["services"]
    return listed


def requirements(name: str) -> set[str]:
    lines = (ROOT / name).read_text(encoding="utf-8").splitlines()
    return {line for line in lines if line and not line.startswith("#")}


def project() -> dict[str, Any]:
    loaded: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return loaded


@pytest.mark.parametrize("name", sorted(services()))
def test_every_service_is_confined(name: str) -> None:
    service = services()[name]
    assert service["init"] is True, "Python as PID 1 ignores SIGTERM"
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["restart"] in ("unless-stopped", "on-failure:3")
    assert "privileged" not in service and "network_mode" not in service and "pid" not in service
    assert not [volume for volume in service.get("volumes", []) if volume.startswith(("/", ".", "~"))]


def test_only_the_gateway_publishes_and_on_loopback_only() -> None:
    published = {name: service["ports"] for name, service in services().items() if "ports" in service}
    assert list(published) == ["gateway"]
    assert all(port.startswith("127.0.0.1:") for port in published["gateway"])


def test_models_are_written_by_the_engine_image_only() -> None:
    mounts = {name: service["volumes"] for name, service in services().items() if "volumes" in service}
    assert mounts["gateway"] == ["home:/var/lib/soloist:ro"]
    assert mounts["fetch"] == mounts["engine"] == ["home:/var/lib/soloist"]
    assert services()["fetch"]["image"] == services()["engine"]["image"]


def test_start_order_is_by_health() -> None:
    order = {name: service.get("depends_on", {}) for name, service in services().items()}
    assert order["engine"] == {"fetch": {"condition": "service_completed_successfully"}}
    assert order["gateway"] == {"redis": {"condition": "service_healthy"}}, "503 with a reason beats no answer at all"
    assert "healthcheck" in services()["redis"]


def test_stopping_leaves_time_to_drain() -> None:
    for name in ("redis", *SERVICES):
        assert int(services()[name]["stop_grace_period"].removesuffix("s")) >= 15


def test_gpu_is_reserved_and_reset_by_one_file() -> None:
    reservations = services()["engine"]["deploy"]["resources"]["reservations"]["devices"]
    assert reservations == [{"driver": "nvidia", "device_ids": ["${SOLOIST_GPU:-0}"], "capabilities": ["gpu"]}]
    override = load("compose.cpu.yaml")["services"]
    assert list(override) == ["engine"]
    assert "devices: !reset []" in (ROOT / "compose.cpu.yaml").read_text(encoding="utf-8")
    assert services()["engine"]["environment"]["ENGINE_DEVICE"] == "cuda"
    assert override["engine"]["environment"] == {"ENGINE_DEVICE": "cpu"}


def test_example_environment_names_every_variable_with_its_default() -> None:
    used: dict[str, str] = {}
    for name in ("compose.yaml", "compose.cpu.yaml"):
        used |= dict(re.findall(r"\$\{(\w+):-([^}]*)\}", (ROOT / name).read_text(encoding="utf-8")))
    example = dict(re.findall(r"^#(\w+)=(.*)$", (ROOT / ".env.example").read_text(encoding="utf-8"), re.MULTILINE))
    assert example == used


@pytest.mark.parametrize("name", SERVICES)
def test_dockerfile_keeps_to_its_service(name: str) -> None:
    text = (ROOT / "services" / name / "Dockerfile").read_text(encoding="utf-8")
    instructions = text.replace("\\\n", "")
    assert "ARG BASE=python:3.12-slim\n" in text
    bases = re.findall(r"^FROM (\S+)", instructions, re.MULTILINE)
    stages = re.findall(r"^FROM \S+ AS (\S+)", instructions, re.MULTILINE)
    assert set(bases) <= {"${BASE}", *stages}, "every stage starts from BASE"
    copied = re.findall(r"^COPY (services/\w+/|tests/\S+) ", instructions, re.MULTILINE)
    assert set(copied) <= {"services/contracts/", f"services/{name}/", "tests/support/scripted_engine.py"}
    runnable = re.split(r"^FROM ", instructions, flags=re.MULTILINE)
    for stage in (part for part in runnable if "\nCMD " in part):
        assert "USER 10001:10001" in stage
    assert "HEALTHCHECK" in text
    assert not re.search(r"^RUN pip|--mount", text, re.MULTILINE), "no pip outside our venv, no BuildKit-only syntax"


def imported_distributions(folder: Path) -> Iterator[str]:
    for path in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
                names = [node.module]
            for name in names:
                top = name.partition(".")[0]
                if top not in sys.stdlib_module_names and not (ROOT / "services" / top).is_dir():
                    yield DISTRIBUTIONS.get(top, top)


@pytest.mark.parametrize("name", SERVICES)
def test_requirement_lists_hold_what_the_service_imports(name: str) -> None:
    listed = requirements(f"services/{name}/requirements.txt")
    imported = set(imported_distributions(ROOT / "services" / name))
    imported |= set(imported_distributions(ROOT / "services" / "contracts"))
    assert imported - NOT_INSTALLED <= listed, "imported but not installed in the image"
    assert listed - LOADED_BY_NAME <= imported, "installed in the image but never imported"


@pytest.mark.parametrize("name", [p.relative_to(ROOT).as_posix() for p in ROOT.glob("services/*/requirements*.txt")])
def test_requirement_lists_are_part_of_the_project(name: str) -> None:
    listed = requirements(name)
    assert listed and listed <= set(project()["dependencies"])
    pins = {line.partition("==")[0].lower() for line in requirements("constraints.txt")}
    assert {entry.lower() for entry in listed} <= pins


def test_torch_stays_out_of_the_small_images() -> None:
    assert "torch" in requirements("services/engine/requirements.txt")
    for name in ("services/gateway/requirements.txt", "services/engine/requirements-scripted.txt"):
        assert not {"torch", "safetensors"} & requirements(name)


def compose_is_at_hand() -> bool:
    if shutil.which("docker") is None:
        return False
    return subprocess.run(["docker", "compose", "version"], capture_output=True, check=False).returncode == 0


@pytest.mark.skipif(not compose_is_at_hand(), reason="no docker compose v2 here")
@pytest.mark.parametrize("files", [["compose.yaml"], ["compose.yaml", "compose.cpu.yaml"]], ids=["gpu", "cpu"])
def test_compose_accepts_the_files(files: list[str]) -> None:
    words = [word for name in files for word in ("-f", name)]
    done = subprocess.run(
        ["docker", "compose", *words, "config"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    devices = yaml.safe_load(done.stdout)["services"]["engine"]["deploy"]["resources"]["reservations"]
    assert bool(devices) == (len(files) == 1)
