"""What this process may use of its machine: CPUs and memory, with container limits. Owns readings, decides nothing."""

import os
from dataclasses import dataclass
from pathlib import Path

_CGROUP = Path("/sys/fs/cgroup")
_MEMINFO = Path("/proc/meminfo")


@dataclass(frozen=True, slots=True)
class Reading:
    """A number and where it comes from, for the log."""

    value: int
    reason: str


def usable_cpus(cgroup: Path = _CGROUP) -> Reading:
    """CPUs of the affinity mask, less if the container's quota is lower; at least 1."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = _cpu_quota(cgroup)
    if quota is not None and quota < allowed:
        return Reading(max(1, int(quota)), f"container quota of {quota:g} CPUs")
    return Reading(allowed, f"{allowed} CPUs this process may run on")


def free_memory_bytes(cgroup: Path = _CGROUP, meminfo: Path = _MEMINFO) -> Reading | None:
    """Memory that can still be had without swapping, less if the container's limit is lower; None when unknown."""
    available = _meminfo_bytes(meminfo, "MemAvailable")
    if available is None:
        return None
    limit = _read_number(cgroup / "memory.max")
    used = _read_number(cgroup / "memory.current")
    if limit is not None and used is not None and limit - used < available:
        return Reading(limit - used, "left of the container's memory limit")
    return Reading(available, "memory available")


def _cpu_quota(cgroup: Path) -> float | None:
    """CPUs of the quota, None when there is none; both control group versions."""
    text = _read_text(cgroup / "cpu.max")
    if text is not None:
        quota, period = text.split()
        return None if quota == "max" else int(quota) / int(period)
    old_quota, old_period = (_read_number(cgroup / "cpu" / f"cpu.cfs_{name}_us") for name in ("quota", "period"))
    return None if old_quota is None or old_period is None or old_quota < 0 else old_quota / old_period


def _meminfo_bytes(meminfo: Path, field: str) -> int | None:
    for line in (_read_text(meminfo) or "").splitlines():
        name, _, rest = line.partition(":")
        if name == field:
            return int(rest.split()[0]) * 1024
    return None


def _read_number(path: Path) -> int | None:
    text = _read_text(path)
    return int(text) if text is not None and text.lstrip("-").isdigit() else None


def _read_text(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except OSError:
        return None
