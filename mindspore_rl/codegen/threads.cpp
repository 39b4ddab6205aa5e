// Runs parts of some work on several threads of this process; one pool for all cells.
//
// The assignment of parts to threads does not matter: every part writes to a place of its own.
#include <pthread.h>

#include <atomic>
#include <cstdint>
#include <mutex>
#include <system_error>
#include <thread>

typedef void (*part_function)(void *context, int64_t part);

namespace {
#if defined(__x86_64__)
inline void pause() { __builtin_ia32_pause(); }
#else
inline void pause() {}
#endif
#ifndef SPINS
#define SPINS 400  // some microseconds; then the thread sleeps
#endif
struct Work {
  part_function function;
  void *context;
  int64_t parts;
};
Work work;
std::atomic<int64_t> next{0}, left{0};
std::atomic<uint32_t> turn{0};  // counts the pieces of work; odd while helpers may join
std::atomic<int> inside{0}, helpers{0};
int wanted = 0;
std::mutex busy;

void take() {
  int64_t part;
  while ((part = next.fetch_add(1)) < work.parts) {
    work.function(work.context, part);
    left.fetch_sub(1);
    left.notify_one();
  }
}

template <class T> void wait_while(std::atomic<T> &value, T old) {
  for (int i = 0; i < SPINS; i++) {
    if (value.load() != old) return;
    pause();
  }
  value.wait(old);
}

void help() {
  uint32_t seen = 0;
  for (;;) {
    uint32_t now = turn.load();
    while (now == seen || now % 2 == 0) {
      wait_while(turn, now);
      now = turn.load();
    }
    seen = now;
    inside.fetch_add(1);
    if (turn.load() == now) take();
    if (inside.fetch_sub(1) == 1) inside.notify_one();
  }
}

void start() {
  try {
    while (helpers.load() < wanted) {
      std::thread(help).detach();
      helpers.fetch_add(1);
    }
  } catch (const std::system_error &) {
    wanted = helpers.load();  // at most the number allowed
  }
}
}  // namespace

// Sets the number of threads, including the caller's; fewer if the system starts no more.
extern "C" void set_threads(int count) { wanted = count - 1; }

// A forked process has only the calling thread.
static void alone() {
  helpers.store(0);
  inside.store(0);
  wanted = 0;
}

extern "C" void in_parts(part_function function, void *context, int64_t parts) {
  if (wanted < 1 || parts < 2 || !busy.try_lock()) {
    for (int64_t part = 0; part < parts; part++) function(context, part);
    return;
  }
  if (helpers.load() < wanted) {
    static std::once_flag once;
    std::call_once(once, [] { pthread_atfork(nullptr, nullptr, alone); });
    start();
  }
  work = {function, context, parts};
  left.store(parts);
  next.store(0);
  turn.fetch_add(1);
  turn.notify_all();
  take();
  for (int64_t rest = left.load(); rest > 0; rest = left.load()) wait_while(left, rest);
  turn.fetch_add(1);  // no helper joins any more; those inside find no part left
  for (int n = inside.load(); n > 0; n = inside.load()) wait_while(inside, n);
  busy.unlock();
}
