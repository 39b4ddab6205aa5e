// What a rank that has some of a table's lanes tells ranks of its host, in the table itself: its
// lanes' totals and the limit's counts, as they were at one moment.
//
// Each rank posts when all do, and has read the others' posts before its next: two places do.
#pragma once
#include "rate_limiter.h"

extern "C" {
// How many posts there are then.
uint64_t table_post(char *base, int64_t over) {
  Table table(base);
  Limit &limit = table.limit();
  uint64_t posts = limit.posts + 1;
  Post &post = limit.post[posts % 2];
  post = {load(limit.inserts), load(limit.samples), over};
  for (int64_t i = 0; i < table.header.lanes; i++) {
    Lane &lane = table.lane(i);
    lane.post[posts % 2] = load(lane.total);
    if (!limited(table)) post.inserts += load(lane.committed);  // of a whole that may be limited
  }
  store(limit.posts, posts);
  std::atomic_thread_fence(std::memory_order_seq_cst);  // the post first
  if (load(limit.waiting)) {
    store(limit.waiting, uint32_t(0));
    syscall(SYS_futex, &limit.posts, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
  }
  return posts;
}

// Copies inserts, samples, over and the lanes' totals of a post, for which it waits so long.
bool table_posted(char *base, uint64_t posts, double seconds, uint64_t *told) {
  Table table(base);
  Limit &limit = table.limit();
  uint64_t seen = load(limit.posts);
  if (seen < posts && seconds > 0) {
    store(limit.waiting, uint32_t(1));
    std::atomic_thread_fence(std::memory_order_seq_cst);
    sleep_while(&limit.posts, uint32_t(seen), seconds);  // its low half, which comes first
    seen = load(limit.posts);
  }
  if (seen < posts) return false;
  memcpy(told, &limit.post[posts % 2], sizeof(Post));
  for (int64_t i = 0; i < table.header.lanes; i++)
    told[sizeof(Post) / sizeof *told + i] = table.lane(i).post[posts % 2];
  return true;
}
}
