// GraphCorridor of corridor.py for one environment. State: place and steps taken.

ROW void start(const float *noise, float *state) {
  state[0] = noise[0] - 0.5f;
  state[1] = 0.0f;
}

ROW void observe(const float *state, float *obs) { obs[0] = state[0]; }

ROW void advance(const float *state, const int *action, float *next, float *reward,
                 bool *terminated, bool *truncated) {
  next[0] = state[0] + 0.1f * (2.0f * *action - 1.0f);
  next[1] = state[1] + 1.0f;
  *terminated = fabsf(next[0]) > 1.0f;
  *truncated = next[1] >= MAX_STEPS && !*terminated;
  *reward = !*terminated ? -0.01f : next[0] > 0.0f ? 1.0f : -1.0f;
}
