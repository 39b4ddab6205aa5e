// What a rank that has some of a table's lanes tells ranks of its host, in the table itself: its
// lanes' totals and the limit's counts, as they were at one moment.
//
// Each rank posts when all do, and reads the others' posts before its next: two places are enough.
#pragma once
#include "limit.h"

extern "C" {
// How many posts there are then.
uint64_t table_post(char *base, int64_t over) {
  Table table(base);
  Limit &limit = table.limit();
  uint64_t posts = limit.posts + 1;
  limit.post[posts % 2] = {load(limit.inserts), load(limit.samples), over};
  for (int64_t i = 0; i < table.header.lanes; i++)
    table.lane(i).post[posts % 2] = load(table.lane(i).total);
  store(limit.posts, posts);
  wake(table);
  return posts;
}

// Copies inserts, samples, over and the lanes' totals of a post, for which it waits so long.
bool table_posted(char *base, uint64_t posts, double seconds, uint64_t *told) {
  Table table(base);
  Limit &limit = table.limit();
  if (load(limit.posts) < posts && seconds > 0) {
    uint32_t seen = table_watch(base);
    if (load(limit.posts) < posts) table_sleep(base, seen, seconds);
  }
  if (load(limit.posts) < posts) return false;
  memcpy(told, &limit.post[posts % 2], sizeof(Post));
  for (int64_t i = 0; i < table.header.lanes; i++)
    told[sizeof(Post) / sizeof *told + i] = table.lane(i).post[posts % 2];
  return true;
}
}
