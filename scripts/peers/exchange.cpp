// How fast two cores exchange a line of their caches.
#include <atomic>
#include <chrono>
#include <cstdint>
#include <pthread.h>
#include <thread>

namespace {
alignas(64) std::atomic<int64_t> turn{0};

void pin(int core) {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  CPU_SET(core, &cores);
  pthread_setaffinity_np(pthread_self(), sizeof cores, &cores);
}

void play(int core, int64_t first, int64_t turns) {
  pin(core);
  for (int64_t i = first; i < turns; i += 2) {
    while (turn.load(std::memory_order_acquire) != i) {}
    turn.store(i + 1, std::memory_order_release);
  }
}
}  // namespace

// Nanoseconds from one core to the other, the mean of an even number of turns.
extern "C" double exchange(int core, int other, int64_t turns) {
  turn = 0;
  auto start = std::chrono::steady_clock::now();
  std::thread here(play, core, 0, turns), there(play, other, 1, turns);
  here.join();
  there.join();
  return std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - start).count() /
         double(turns);
}
