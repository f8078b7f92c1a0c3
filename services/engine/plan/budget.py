"""How much of a device the arena may take: its bytes less what lies outside the plan. Owns the subtraction."""

from dataclasses import dataclass

from contracts.errors import SetupError
from engine.machine import free_memory_bytes
from engine.plan.card import Card, Reserve, cuda_reserve


@dataclass(frozen=True, slots=True)
class Budget:
    """A device and what of it is not for the arena."""

    name: str
    title: str
    device_bytes: int
    source: str
    reserves: tuple[Reserve, ...]
    on_card: bool

    @property
    def usable_bytes(self) -> int:
        """What the arena may take."""
        return self.device_bytes - sum(reserve.bytes for reserve in self.reserves)


def card_budget(card: Card, reserve_bytes: int | None, vision_bytes: int) -> Budget:
    """A card of the table with one engine process on it."""
    source = f"{card.total_source} ({card.date})"
    return Budget(card.name, card.title, card.total_bytes, source, _reserves(reserve_bytes, vision_bytes), on_card=True)


def device_budget(device_bytes: int, reserve_bytes: int | None, vision_bytes: int) -> Budget:
    """A device of so many bytes with one engine process on it."""
    title = f"a device of {device_bytes:,} bytes"
    return Budget("device", title, device_bytes, "--device-bytes", _reserves(reserve_bytes, vision_bytes), on_card=True)


def machine_budget(reserve_bytes: int | None, vision_bytes: int) -> Budget:
    """This machine's memory as the engine's start would take it: no card, so no driver context.

    Raises: SetupError when the system does not say how much is free.
    """
    free = free_memory_bytes()
    if free is None:
        raise SetupError("the free memory of this system is unknown; say it with --device-bytes, or name a --gpu")
    reserves = _reserves(reserve_bytes or 0, vision_bytes)
    return Budget("machine", "this machine's memory", free.value, free.reason, reserves, on_card=False)


def _reserves(reserve_bytes: int | None, vision_bytes: int) -> tuple[Reserve, ...]:
    own = cuda_reserve()
    if reserve_bytes is not None:
        own = Reserve("engine process outside the arena", reserve_bytes, "given", "--reserve-bytes")
    vision = Reserve("vision process", vision_bytes, "given", "--vision-bytes")
    return tuple(reserve for reserve in (own, vision) if reserve.bytes)
