"""TorchRL in the benchmark of replay tables: one process owns the table and reads it.

Uniform only: its priority sampler is native code, which its wheel has for one build of torch only.
"""

import time

import replay_loop as loop
import torch
from tensordict import TensorDict
from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer

args = loop.arguments()
buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(loop.RECORDS), batch_size=args.batch)
columns = {name: torch.from_numpy(x) for name, x in loop.trajectories(loop.RECORDS).items()}
data = TensorDict(columns, [loop.RECORDS])
buffer.extend(data)
if args.what == "read":
    loop.tell(loop.rate(buffer.sample, args.seconds))
elif args.what == "insert":
    records = [data[i] for i in range(loop.RECORDS)]
    start = time.perf_counter()
    for record in records:
        buffer.add(record)
    loop.tell(loop.RECORDS / (time.perf_counter() - start))
