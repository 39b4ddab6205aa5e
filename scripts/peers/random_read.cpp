// How long one read of memory takes whose address the read before it has told.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <numeric>
#include <random>
#include <vector>

constexpr int64_t PIECE = 2000;

struct alignas(64) Line {
  uint64_t next, rest[7];
};

// Nanoseconds, in `count` lines of 64 bytes that one cycle leads through: the median of many pieces.
extern "C" double random_read(int64_t count, int64_t pieces) {
  std::vector<Line> lines(count);
  std::vector<uint64_t> order(count);
  std::iota(order.begin(), order.end(), 0);
  std::shuffle(order.begin(), order.end(), std::mt19937_64(1));
  for (int64_t i = 0; i < count; i++) lines[order[i]].next = order[(i + 1) % count];
  volatile uint64_t at = 0;
  std::vector<double> times(pieces);
  for (double &time : times) {
    auto start = std::chrono::steady_clock::now();
    for (int64_t i = 0; i < PIECE; i++) at = lines[at].next;
    time = std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - start).count();
  }
  std::nth_element(times.begin(), times.begin() + pieces / 2, times.end());
  return times[pieces / 2] / double(PIECE);
}
