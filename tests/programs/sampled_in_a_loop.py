"""Several rollouts in an iteration, each with its sample, and samples of several rollouts."""

from tests.programs.two_rollouts import TwoRollouts


class SampledInALoop(TwoRollouts):
    def rollout(self, msrl, obs):
        for _ in msrl.steps():
            action = msrl.agent_act(obs)
            next_obs, final_obs, reward, terminated, truncated = msrl.env_step(action)
            msrl.replay_insert(obs, action, reward, terminated, truncated, final_obs)
            obs = next_obs
        return obs

    def train(self, msrl):
        obs = msrl.env_reset()
        for _ in msrl.iterations():
            total, weight = 0.0, 1.0 + 0.01 * msrl.env_steps()
            for half in range(2):
                obs = self.rollout(msrl, obs)
                total += self.phase(msrl, weight) * (half + 1)
            obs = self.rollout(msrl, obs)
            obs = self.rollout(msrl, obs)
            again = self.phase(msrl, 0.5)
            msrl.report({"total": total, "again": again})
