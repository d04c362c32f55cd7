"""Let a pass that is taken anew draw the same dropout."""

from __future__ import annotations

import torch


class Lots:
    """The states of the random generators that dropout will draw from, as they are now."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._cpu = torch.get_rng_state()
        self._gpu = torch.cuda.get_rng_state(device) if device.type == "cuda" else None

    def draw_again(self) -> None:
        """Return the generators to these states."""
        torch.set_rng_state(self._cpu)
        if self._gpu is not None:
            torch.cuda.set_rng_state(self._gpu, self._device)
