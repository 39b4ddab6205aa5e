"""Example of an exported policy without this project: plays four weeks of `shop.py`.

python docs/examples/use_onnx.py policy.onnx
"""

import json
import sys

import numpy as np
import onnxruntime
from gymnasium import spaces
from shop import Shop

env = Shop()
session = onnxruntime.InferenceSession(sys.argv[1])
for column in json.loads(session.get_modelmeta().custom_metadata_map["obs"]):
    print(column["path"], "columns", *column["columns"])
parts = {key: env.observation_space[key] for key in ("asked", "weekday")}


def choose(obs):
    """Returns the policy's action: its input is the flattened observation, then the mask."""
    flat = spaces.flatten(spaces.Dict(parts), {key: obs[key] for key in parts})
    row = np.concatenate([flat, obs["action_mask"]]).astype(np.float32)
    (action,) = session.run(["action"], {"obs": row[None]})
    return int(action[0])


total, truncated = 0.0, False
obs, _ = env.reset(seed=1)
while not truncated:
    obs, reward, _, truncated, _ = env.step(choose(obs))
    total += reward
print(f"return {total:.1f}")
