// Sampling from categorical distributions, see action_distributions.py.
// Inputs: logits [rows, n] float, noise [rows, 1] float. Outputs: action [rows] int, log_prob [rows].
#include <cmath>
#include <cstdint>

extern "C" int sample(int, void **params, int *ndims, int64_t **shapes, const char **, void *,
                      void *) {
  const float *logits = (const float *)params[0], *noise = (const float *)params[1];
  int *action = (int *)params[2];
  float *log_prob = (float *)params[3];
  const int64_t n = shapes[0][ndims[0] - 1];
  int64_t rows = 1;
  for (int axis = 0; axis < ndims[0] - 1; axis++) rows *= shapes[0][axis];
  for (int64_t row = 0; row < rows; row++, logits += n) {
    float largest = logits[0];
    for (int64_t i = 1; i < n; i++) largest = logits[i] > largest ? logits[i] : largest;
    float total = 0.0f;
    for (int64_t i = 0; i < n; i++) total += std::exp(logits[i] - largest);
    // The same sum again, so that the last partial sum is the total: noise < 1 stays below it.
    const float threshold = noise[row] * total;
    int64_t chosen = 0;
    float sum = std::exp(logits[0] - largest);
    while (chosen < n - 1 && !(sum > threshold)) sum += std::exp(logits[++chosen] - largest);
    action[row] = (int)chosen;
    log_prob[row] = logits[chosen] - largest - std::log(total);
  }
  return 0;
}
