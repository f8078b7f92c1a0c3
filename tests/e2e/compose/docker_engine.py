"""A Docker engine for the run: the one that answers already, or a private one with its own root, socket and pid file.

Owns the private daemon from start to the removal of the link, firewall rules and mounts it made. Never stops,
configures or cleans a daemon that was there before. Builds no image.
"""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from e2e.compose.debian import install_packages, unpack_from_release
from e2e.compose.steps import StepFailed, Steps, Unavailable, is_root

START_TIMEOUT_S = 60
STOP_TIMEOUT_S = 30
DATA_DISK_BYTES = 40 << 30  # sparse: takes what the images need, 4 to 6 GB
FORWARDING = Path("/proc/sys/net/ipv4/ip_forward")
# Debian 12 has only Compose v1; these two packages of Debian 13 need nothing but libc.
PLUGIN_RELEASE = "trixie"
PLUGIN_PACKAGES = ["docker-compose", "docker-buildx"]


@contextmanager
def open_engine(steps: Steps, folder: Path) -> Iterator[bool]:
    """Make `docker compose` v2 work with the environment of steps; yields whether the daemon is our own."""
    if steps.succeeds(["docker", "info"]):
        _ensure_plugins(steps, folder)
        yield False
        return
    if not is_root():
        raise Unavailable("no Docker engine answers and only root can start one")
    if not all(shutil.which(name) for name in ("docker", "dockerd", "iptables", "ip")):
        with steps.step("install Docker"):
            install_packages(steps, ["docker.io", "iptables", "iproute2"])
    with _private_daemon(steps, folder):
        _ensure_plugins(steps, folder)
        yield True


@contextmanager
def _private_daemon(steps: Steps, folder: Path) -> Iterator[None]:
    if steps.succeeds(["ip", "link", "show", "docker0"]):
        raise Unavailable("a docker0 link exists but no engine answers: not touching what another daemon left")
    socket_path = folder / "d.sock"
    forwarding = FORWARDING.read_text(encoding="ascii")
    forward_policy = _forward_policy(steps)
    _mount_data_disk(steps, folder)
    command = [
        "dockerd", "--host", f"unix://{socket_path}", "--data-root", str(folder / "data"),
        "--exec-root", str(folder / "exec"), "--pidfile", str(folder / "docker.pid"),
    ]  # fmt: skip
    with (folder / "dockerd.log").open("w", encoding="utf-8") as log:
        daemon = subprocess.Popen(["nice", *command], stdout=log, stderr=log, start_new_session=True)
    try:
        with steps.step("start dockerd"):
            steps.environ["DOCKER_HOST"] = f"unix://{socket_path}"
            _await_daemon(steps, daemon, folder / "dockerd.log")
        yield
    finally:
        with steps.step("stop dockerd"):
            _stop(daemon)
            _remove_traces(steps, folder, forward_policy)
            FORWARDING.write_text(forwarding, encoding="ascii")


def _mount_data_disk(steps: Steps, folder: Path) -> None:
    """Keep the images in one sparse file: removing 100,000 small files can take minutes, removing one takes none.

    Without loop devices the images lie in the plain folder, and only the removal is slower.
    """
    disk, data = folder / "data.img", folder / "data"
    data.mkdir()
    with disk.open("wb") as file:
        file.truncate(DATA_DISK_BYTES)
    made = steps.succeeds(["mkfs.ext4", "-q", "-E", "lazy_itable_init=1,nodiscard", "-O", "^has_journal", disk])
    if not (made and steps.succeeds(["mount", "-o", "loop,nodiscard", disk, data])):
        disk.unlink()
        print("    no loop device: images lie in a plain folder", file=sys.stderr)


def _await_daemon(steps: Steps, daemon: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while not steps.succeeds(["docker", "info"]):
        if daemon.poll() is not None or time.monotonic() > deadline:
            tail = log.read_text(encoding="utf-8", errors="replace")[-1500:]
            raise Unavailable(f"dockerd does not come up here:\n{tail}")
        time.sleep(0.3)


def _stop(daemon: subprocess.Popen[bytes]) -> None:
    daemon.send_signal(signal.SIGTERM)
    try:
        daemon.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        os.killpg(daemon.pid, signal.SIGKILL)
        daemon.wait()


def _forward_policy(steps: Steps) -> str:
    for line in steps.run(["iptables", "-S", "FORWARD"]).splitlines():
        if line.startswith("-P FORWARD"):
            return line.split()[2]
    return "ACCEPT"


def _remove_traces(steps: Steps, folder: Path, forward_policy: str) -> None:
    """Undo what a stopped dockerd leaves: mounts under its folder, the docker0 link, its chains and forward policy."""
    mounted = [line.split()[1] for line in Path("/proc/self/mounts").read_text(encoding="utf-8").splitlines()]
    for mount in reversed([path for path in mounted if path.startswith(f"{folder}/")]):
        steps.succeeds(["umount", "--lazy", mount])
    steps.succeeds(["ip", "link", "delete", "docker0"])
    for save, restore in (("iptables-save", "iptables-restore"), ("ip6tables-save", "ip6tables-restore")):
        rules = steps.run([save])
        if "DOCKER" not in rules:
            continue
        kept = [line for line in rules.splitlines() if "DOCKER" not in line and "docker0" not in line]
        if save == "iptables-save":
            kept = [f":FORWARD {forward_policy} [0:0]" if k.startswith(":FORWARD DROP") else k for k in kept]
        subprocess.run([restore], input="\n".join(kept) + "\n", text=True, check=True, timeout=60)


def _ensure_plugins(steps: Steps, folder: Path) -> None:
    """Compose v2 as it is, or unpacked privately from a newer Debian release and linked for this run only."""
    if steps.succeeds(["docker", "compose", "version"]):
        return
    with steps.step("get Compose v2"):
        root = unpack_from_release(steps, PLUGIN_RELEASE, PLUGIN_PACKAGES, folder / "plugins")
        plugins = folder / "docker-config" / "cli-plugins"
        plugins.mkdir(parents=True)
        for name in PLUGIN_PACKAGES:
            (plugins / name).symlink_to(root / "usr/libexec/docker/cli-plugins" / name)
        steps.environ["DOCKER_CONFIG"] = str(plugins.parent)
        try:
            steps.run(["docker", "compose", "version"])
        except StepFailed as error:
            raise Unavailable(f"the unpacked Compose v2 plugin does not run here: {error}") from error
