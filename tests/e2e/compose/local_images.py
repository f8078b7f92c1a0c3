"""Images without an image registry: a base from Debian packages that also carries Redis, and a clean build context.

Owns what goes into the context: the files a build may see, this machine's extra CA certificates, a CPU build of torch.
"""

import shutil
import subprocess
import sys
from pathlib import Path

from e2e.compose.debian import find_mirror, install_packages
from e2e.compose.steps import StepFailed, Steps, Unavailable

ROOT = Path(__file__).resolve().parents[3]
CONTEXT_FILES = ["constraints.txt", "compose.yaml", "compose.cpu.yaml", ".dockerignore"]
CONTEXT_FOLDERS = ["services", "certs", "wheels", "models", "tests/support"]
EXTRA_CERTIFICATES = Path("/usr/local/share/ca-certificates")
RELEASE = "bookworm"
BASE_PYTHON = "3.11"
BASE_PACKAGES = "python3,python3-venv,ca-certificates,passwd,redis-server"
BASE_TAG = f"soloist-e2e/debian:{RELEASE}"
# The account of the official Redis image, which compose.yaml names, so that the volume is writable in both.
DATA_FOLDER_HOOK = 'install -d -o 999 -g 1000 "$1/data"'


def build_base(steps: Steps, folder: Path) -> str:
    """Build the base image from Debian packages and import it; returns its tag, used for Redis as well."""
    if steps.succeeds(["docker", "image", "inspect", BASE_TAG]):
        return BASE_TAG
    mirror = find_mirror(steps)
    if shutil.which("mmdebstrap") is None:
        install_packages(steps, ["mmdebstrap"])
    archive = folder / "base.tar"
    with steps.step("base image: debootstrap"):
        command = ["env", f"TMPDIR={folder}", "mmdebstrap", "--variant=essential", f"--include={BASE_PACKAGES}"]
        steps.run([*command, f"--customize-hook={DATA_FOLDER_HOOK}", RELEASE, archive, mirror])
    with steps.step("base image: import"):
        steps.run(["docker", "import", archive, BASE_TAG])
    archive.unlink()
    return BASE_TAG


def lay_context(folder: Path) -> Path:
    """Copy what a build may see to a folder of its own, with this machine's extra CA certificates in certs/."""
    context = folder / "context"
    for name in CONTEXT_FOLDERS:
        shutil.copytree(ROOT / name, context / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in CONTEXT_FILES:
        shutil.copy2(ROOT / name, context / name)
    for certificate in EXTRA_CERTIFICATES.rglob("*.crt"):
        shutil.copy2(certificate, context / "certs" / certificate.name)
    return context


def add_cpu_torch(steps: Steps, context: Path) -> None:
    """Put a CPU build of torch into wheels/, from wherever this machine's pip finds one.

    Raises: Unavailable when pip finds none; the default build carries CUDA, gigabytes that this run has no use for.
    """
    wheels = context / "wheels"
    if list(wheels.glob("torch-*+cpu-*.whl")):
        return
    pins = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    version = next(pin for pin in pins if pin.startswith("torch=="))
    command = [
        sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:", "--dest", str(wheels),
        "--python-version", BASE_PYTHON, "--platform", "manylinux_2_28_x86_64", f"{version}+cpu",
    ]  # fmt: skip
    try:
        steps.run(command)
    except (StepFailed, subprocess.SubprocessError) as error:
        raise Unavailable(
            f"pip finds no {version}+cpu for Python {BASE_PYTHON}: set PIP_FIND_LINKS or PIP_EXTRA_INDEX_URL to a "
            f"place that has it, put the wheel into wheels/, or pass --engine scripted\n{error}"
        ) from error
