"""Trains PPO on CartPole-v1 from Python, and plays ten episodes without exploration."""

from mindspore_rl import train

run = train("ppo", env="CartPole-v1", workers=2)
print(run.evaluate(episodes=10).mean())
