// CartPole-v1 (Barto, Sutton and Anderson, 1983, as gym has it).
// State: x, x_dot, theta, theta_dot, steps taken; the first four are the observation.

ROW void start(const float *noise, float *state) {
  for (int i = 0; i < 4; i++) state[i] = noise[i] * 0.1f - 0.05f;
  state[4] = 0.0f;
}

ROW void observe(const float *state, float *obs) {
  for (int i = 0; i < 4; i++) obs[i] = state[i];
}

ROW void advance(const float *state, const int *action, float *next, float *reward,
                 bool *terminated, bool *truncated) {
  const float gravity = 9.8f, mass_pole = 0.1f, mass = 1.1f, length = 0.5f, tau = 0.02f;
  const float x_limit = 2.4f, theta_limit = 12.0f * 2.0f * 3.14159265f / 360.0f;
  const float x_dot = state[1], theta = state[2], theta_dot = state[3];
  const float sine = sinf(theta), cosine = cosf(theta);
  const float force = *action ? 10.0f : -10.0f;
  const float temp = (force + mass_pole * length * theta_dot * theta_dot * sine) / mass;
  const float theta_acc = (gravity * sine - cosine * temp) /
                          (length * (4.0f / 3.0f - mass_pole * cosine * cosine / mass));
  const float x_acc = temp - mass_pole * length * theta_acc * cosine / mass;
  next[0] = state[0] + tau * x_dot;
  next[1] = x_dot + tau * x_acc;
  next[2] = theta + tau * theta_dot;
  next[3] = theta_dot + tau * theta_acc;
  next[4] = state[4] + 1.0f;
  *reward = 1.0f;
  *terminated = fabsf(next[0]) > x_limit || fabsf(next[2]) > theta_limit;
  *truncated = next[4] >= MAX_STEPS;
}
