// Runs parts of some work on several threads of this process; one pool for all cells.
//
// The assignment of parts to threads does not matter for results: every part writes to a place of
// its own. Each thread begins with the same parts every time, as their data are in its core's cache;
// then it takes the parts that others have not begun.
#include <pthread.h>  // <thread> and <mutex> take longer to compile than all of this

#include <atomic>
#include <cstdint>

typedef void (*part_function)(void *context, int64_t part);

namespace {
#if defined(__x86_64__)
inline void pause() { __builtin_ia32_pause(); }
#else
inline void pause() {}
#endif
#ifndef SPINS
#define SPINS 3000  // some 75 microseconds; then the thread sleeps
#endif
struct Work {
  part_function function;
  void *context;
  int threads;
};
Work work;
struct alignas(64) Range {
  std::atomic<int64_t> next;
  int64_t end;
};
Range ranges[MAX_THREADS];  // the parts with which each thread begins
std::atomic<int64_t> left{0};
std::atomic<uint32_t> turn{0};  // counts the pieces of work; odd while helpers may join
std::atomic<int> inside{0}, helpers{0};
int wanted = 0;
pthread_mutex_t busy = PTHREAD_MUTEX_INITIALIZER;

void take(int thread) {
  for (int i = 0; i < work.threads; i++) {
    Range &range = ranges[(thread + i) % work.threads];
    int64_t part;
    while ((part = range.next.fetch_add(1)) < range.end) {
      work.function(work.context, part);
      left.fetch_sub(1);
      left.notify_one();
    }
  }
}

template <class T> void wait_while(std::atomic<T> &value, T old) {
  for (int i = 0; i < SPINS; i++) {
    if (value.load() != old) return;
    pause();
  }
  value.wait(old);
}

void *help(void *number) {
  const int thread = int(intptr_t(number));
  uint32_t seen = 0;
  for (;;) {
    uint32_t now = turn.load();
    while (now == seen || now % 2 == 0) {
      wait_while(turn, now);
      now = turn.load();
    }
    seen = now;
    inside.fetch_add(1);
    if (turn.load() == now) take(thread);
    if (inside.fetch_sub(1) == 1) inside.notify_one();
  }
}

void start() {
  while (helpers.load() < wanted) {
    pthread_t made;
    if (pthread_create(&made, nullptr, help, (void *)intptr_t(helpers.load() + 1))) {
      wanted = helpers.load();  // at most the number allowed
      return;
    }
    pthread_detach(made);
    helpers.fetch_add(1);
  }
}
}  // namespace

// Sets the number of threads, including the caller's; fewer if the system starts no more.
extern "C" void set_threads(int count) { wanted = (count < MAX_THREADS ? count : MAX_THREADS) - 1; }

// A forked process has only the calling thread.
static void alone() {
  helpers.store(0);
  inside.store(0);
  wanted = 0;
}

// Returns: the number of threads allowed.
extern "C" int in_parts(part_function function, void *context, int64_t parts) {
  if (wanted < 1 || parts < 2 || pthread_mutex_trylock(&busy)) {
    for (int64_t part = 0; part < parts; part++) function(context, part);
    return wanted + 1;
  }
  if (helpers.load() < wanted) {
    static const int once = pthread_atfork(nullptr, nullptr, alone);
    (void)once;
    start();
  }
  const int threads = helpers.load() + 1;
  work = {function, context, threads};
  for (int i = 0; i < threads; i++) {
    ranges[i].end = (i + 1) * parts / threads;
    ranges[i].next.store(i * parts / threads);
  }
  left.store(parts);
  turn.fetch_add(1);
  turn.notify_all();
  take(0);
  for (int64_t rest = left.load(); rest > 0; rest = left.load()) wait_while(left, rest);
  turn.fetch_add(1);  // no helper joins any more; those inside find no part left
  for (int n = inside.load(); n > 0; n = inside.load()) wait_while(inside, n);
  pthread_mutex_unlock(&busy);
  return threads;
}
