"""`python -m launcher.gpu_probe`: the NVIDIA GPUs of this machine as JSON. Runs inside the virtual environment only.

Prints a list of {"name", "memory_bytes", "free_bytes", "driver"}; an empty list when there is no driver or no card.
"""

import json
import sys

import pynvml


def list_gpus() -> list[dict[str, str | int]]:
    """Every card the driver shows."""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return []
    try:
        driver = _text(pynvml.nvmlSystemGetDriverVersion())
        handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
        return [_describe(handle, driver) for handle in handles]
    finally:
        pynvml.nvmlShutdown()


def _describe(handle: object, driver: str) -> dict[str, str | int]:
    memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
    return {
        "name": _text(pynvml.nvmlDeviceGetName(handle)),
        "memory_bytes": int(memory.total),
        "free_bytes": int(memory.free),
        "driver": driver,
    }


def _text(value: str | bytes) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


if __name__ == "__main__":
    sys.stdout.write(json.dumps(list_gpus()) + "\n")
