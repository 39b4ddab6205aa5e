"""Replay tables: storing, selecting and collecting records.

These names are for programs of any library, see docs/replay_tables.md: importing them imports
neither MindSpore nor MPI nor environments.
"""

from mindspore_rl.replay.draws import Mode, Order
from mindspore_rl.replay.rate_limiter import Wait
from mindspore_rl.replay.sampler import SampledBatch, Sampler
from mindspore_rl.replay.spec import Column, RateLimiter, TableSpec
from mindspore_rl.replay.table import Table
from mindspore_rl.replay.views import NStep, n_step, window_mask
from mindspore_rl.replay.writer import Writer

__all__ = [
    "SampledBatch",
    "Column",
    "Mode",
    "NStep",
    "Order",
    "RateLimiter",
    "Sampler",
    "Table",
    "TableSpec",
    "Wait",
    "Writer",
    "n_step",
    "window_mask",
]
