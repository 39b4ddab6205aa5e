// One step of every environment as a custom operator of MindSpore.
//
// SOURCE is an environment's; it defines, for ONE environment,
//
//   ROW void start(const float *noise, float *state);    the state at an episode's beginning
//   ROW void observe(const float *state, float *obs);
//   ROW void advance(const float *state, const Action *action, float *next, float *reward,
//                    bool *terminated, bool *truncated);
//
// and this file makes of them a step that starts anew where an episode has ended. Of the spec come
// STATE, NOISE, OBS, ACTION and REWARD, how many numbers of one environment these are, MAX_STEPS of
// an episode (0: no limit), and DISCRETE, whether an Action is an int or a float.
#include <cmath>
#include <cstdint>

#define ROW static inline

#if DISCRETE
typedef int Action;
#else
typedef float Action;
#endif

#include SOURCE

extern "C" int step(int, void **params, int *, int64_t **shapes, const char **, void *, void *) {
  const float *state = (const float *)params[0], *noise = (const float *)params[2];
  const Action *action = (const Action *)params[1];
  float *next_state = (float *)params[3], *next_obs = (float *)params[4];
  float *final_obs = (float *)params[5], *reward = (float *)params[6];
  bool *terminated = (bool *)params[7], *truncated = (bool *)params[8];
  const int64_t count = shapes[0][0];
  for (int64_t row = 0; row < count; row++) {
    float *next = next_state + row * STATE;
    advance(state + row * STATE, action + row * ACTION, next, reward + row * REWARD,
            terminated + row, truncated + row);
    observe(next, final_obs + row * OBS);
    if (terminated[row] || truncated[row]) start(noise + row * NOISE, next);
    observe(next, next_obs + row * OBS);
  }
  return 0;
}
