// Pendulum-v1 of gym.
// State: cos(theta), sin(theta), theta_dot, steps taken; the first three are the observation.

ROW void start(const float *noise, float *state) {
  const float pi = 3.14159265f;
  const float angle = noise[0] * (2.0f * pi) - pi;
  state[0] = cosf(angle);
  state[1] = sinf(angle);
  state[2] = noise[1] * 2.0f - 1.0f;
  state[3] = 0.0f;
}

ROW void observe(const float *state, float *obs) {
  for (int i = 0; i < 3; i++) obs[i] = state[i];
}

ROW void advance(const float *state, const float *action, float *next, float *reward,
                 bool *terminated, bool *truncated) {
  const float gravity = 10.0f, mass = 1.0f, length = 1.0f, dt = 0.05f;
  const float angle = atan2f(state[1], state[0]), speed = state[2];
  const float torque = fminf(fmaxf(*action, -2.0f), 2.0f);
  *reward = -(angle * angle + 0.1f * speed * speed + 0.001f * torque * torque);
  const float acceleration =
      3.0f * gravity / (2.0f * length) * state[1] + 3.0f / (mass * length * length) * torque;
  next[2] = fminf(fmaxf(speed + dt * acceleration, -8.0f), 8.0f);
  const float moved = angle + dt * next[2];
  next[0] = cosf(moved);
  next[1] = sinf(moved);
  next[3] = state[3] + 1.0f;
  *terminated = false;
  *truncated = next[3] >= MAX_STEPS;
}
