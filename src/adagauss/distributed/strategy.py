"""Fabric's data-parallel strategy with our settings; imported late, because Fabric takes seconds to import."""

from __future__ import annotations

import inspect
import logging
import warnings
from datetime import timedelta
from typing import Any

from lightning_fabric.strategies.ddp import DDPStrategy
from torch.nn.parallel import DistributedDataParallel

HEARTBEAT_TIMEOUT = timedelta(minutes=30)
"""How long a process waits for the others before it fails: another may be writing a large file."""


class QuietDDP(DDPStrategy):
    """Data-parallel training without messages at its start."""

    def setup_environment(self) -> None:
        """Connect to the other processes."""
        logger = logging.getLogger("lightning_fabric")
        level = logger.level
        logger.setLevel(logging.WARNING)
        # Torch's warning about a convolution with a single input channel, whose memory orders are all one.
        warnings.filterwarnings("ignore", "Grad strides do not match bucket view strides")
        try:
            super().setup_environment()
        finally:
            logger.setLevel(level)


def data_parallel(start: Any) -> QuietDDP:
    """The strategy for processes that ``spawn`` starts, or that exist already: ``popen``.

    Terms come and go between epochs, and with them the parameters that have a gradient. Buffers need not be sent in
    every step: the statistics of batch norm are equal everywhere, or averaged.
    """
    known = inspect.signature(DistributedDataParallel).parameters
    buffers = "forward_sync_buffers" if "forward_sync_buffers" in known else "broadcast_buffers"
    settings: dict[str, Any] = {"find_unused_parameters": True, buffers: False}
    return QuietDDP(start_method=start, timeout=HEARTBEAT_TIMEOUT, **settings)
