"""The arena: one allocation that a MemoryPlan describes, and tensors inside it by name. Owns the bytes, not their use.

On a CPU the allocation is an anonymous mapping: counted in the plan from the start, given pages by the system only when
first written. Regions start zeroed there; on a GPU they are undefined until written.
"""

import mmap
from typing import Final

import torch

from contracts.errors import SetupError
from engine.byte_text import describe_bytes
from engine.memory.layout import DType, Handle, MemoryPlan, Region

_TORCH_DTYPES: Final[dict[DType, torch.dtype]] = {
    "fp32": torch.float32,
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
    "int64": torch.int64,
    "int32": torch.int32,
    "int16": torch.int16,
    "int8": torch.int8,
    "uint8": torch.uint8,
}


class Arena:
    """Allocates plan.total_bytes on a device, once; every tensor is a view that lives as long as the arena's bytes."""

    def __init__(self, plan: MemoryPlan, device: torch.device) -> None:
        """Raises: SetupError when the device has not that many bytes."""
        self.plan: Final = plan
        self.device: Final = device
        self._regions = {region.name: region for region in plan.regions}
        self._bytes = _allocate(plan, device)  # [total_bytes] uint8

    def tensor(self, region: Handle | str) -> torch.Tensor:
        """The region's tensor: contiguous, of the planned shape and dtype; the same bytes on every call.

        Raises: KeyError for a name that was not reserved.
        """
        return self._view(self._regions[region.name if isinstance(region, Handle) else region])

    def _view(self, region: Region) -> torch.Tensor:
        span = self._bytes[region.offset : region.offset + region.tensor_bytes]
        return span.view(_TORCH_DTYPES[region.dtype]).view(region.shape)


def _allocate(plan: MemoryPlan, device: torch.device) -> torch.Tensor:
    if plan.total_bytes == 0:
        return torch.empty(0, dtype=torch.uint8, device=device)
    storage = _map_pages(plan.total_bytes) if device.type == "cpu" else _take_from_device(plan.total_bytes, device)
    assert storage.data_ptr() % plan.alignment_bytes == 0, f"base not aligned to {plan.alignment_bytes}"
    return storage


def _take_from_device(total_bytes: int, device: torch.device) -> torch.Tensor:
    try:
        return torch.empty(total_bytes, dtype=torch.uint8, device=device)
    except torch.OutOfMemoryError as error:
        free_bytes, _ = torch.cuda.mem_get_info(device)
        message = f"the memory plan needs {describe_bytes(total_bytes)}, {device} has {describe_bytes(free_bytes)} free"
        raise SetupError(message) from error


def _map_pages(total_bytes: int) -> torch.Tensor:
    try:
        pages = mmap.mmap(-1, total_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as error:
        raise SetupError(
            f"the system refused {describe_bytes(total_bytes)} for the memory plan: {error.strerror}"
        ) from error
    return torch.frombuffer(pages, dtype=torch.uint8)
