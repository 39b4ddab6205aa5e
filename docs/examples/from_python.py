"""Trains from Python, evaluates the run and plays with its policy; see docs/python.md."""

import gymnasium

from mindspore_rl import load, train

run = train(
    "ppo",
    env="CartPole-v1",
    policy="MultipleLearners",
    workers=2,
    config={"num_steps": 256},
    total_steps=8_000,
    on_iteration=lambda metrics: print(metrics["iteration"], metrics["mean_return"]),
)
print(run.stopped, run.env_steps, run.path)
print("mean return of 10 episodes:", run.evaluate(episodes=10).mean())
run.plot(output="curve.png")

env = gymnasium.make("CartPole-v1")
policy = load(run.path).policy
obs, _ = env.reset(seed=1)
ended = False
while not ended:
    obs, reward, terminated, truncated, _ = env.step(int(policy(obs)))
    ended = terminated or truncated
