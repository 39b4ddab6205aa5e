// How many samples a table allows for its inserts, and how processes wait for each other.
//
// Who waits sleeps on the word `changes`. Only the kernel knows who sleeps, so one that is killed
// leaves nothing behind: `sleeping` then costs the next change one call that wakes nobody.
//
// The counts are those of all lanes. A stratified draw waits for each lane: one that is empty gets a
// record whatever other lanes' writers have inserted, else both would wait for ever.
#pragma once
#include "index.h"

#include <climits>
#include <ctime>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace {
class Counting {
 public:
  explicit Counting(const Table &table) : mutex_(&table.limit().lock) {
    // Each count is one store: what a holder that was killed leaves behind is consistent.
    if (pthread_mutex_lock(mutex_) == EOWNERDEAD) pthread_mutex_consistent(mutex_);
  }
  Counting(const Counting &) = delete;
  ~Counting() { pthread_mutex_unlock(mutex_); }

 private:
  pthread_mutex_t *mutex_;
};

bool limited(const Table &table) {
  return table.header.samples_per_insert > 0 || table.header.min_records > 1;
}

// Counts inserts, into a lane, or samples, if the table allows them now.
bool admit(const Table &table, int64_t inserts, int64_t samples, const Lane *lane = nullptr) {
  if (!limited(table)) return true;
  const Header &header = table.header;
  Limit &limit = table.limit();
  Counting counting(table);
  double ratio = header.samples_per_insert, middle = ratio * double(header.min_records);
  double due = ratio * double(limit.inserts + inserts) - double(limit.samples + samples) - middle;
  bool early = limit.inserts + inserts <= header.min_records;
  bool wanted = lane && load(lane->wanted);
  if (inserts && !early && ratio > 0 && due > header.slack && !wanted) return false;
  if (samples && limit.inserts < header.min_records) return false;
  if (samples && ratio > 0 && due < -header.slack) return false;
  store(limit.inserts, limit.inserts + inserts);
  store(limit.samples, limit.samples + samples);
  return true;
}

void withdraw_insert(const Table &table) {
  if (!limited(table)) return;
  Counting counting(table);
  store(table.limit().inserts, table.limit().inserts - 1);
}

// Tells those who wait that the table has changed.
void wake(const Table &table) {
  Limit &limit = table.limit();
  std::atomic_thread_fence(std::memory_order_seq_cst);  // the change first, see table_watch
  if (!load(limit.sleeping)) return;
  store(limit.sleeping, uint32_t(0));
  __atomic_add_fetch(&limit.changes, 1, __ATOMIC_SEQ_CST);
  syscall(SYS_futex, &limit.changes, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

// Until the word at a place is another, or somebody wakes who sleeps there.
void sleep_while(const void *place, uint32_t word, double seconds) {
  timespec time{time_t(seconds), long((seconds - double(time_t(seconds))) * 1e9)};
  syscall(SYS_futex, place, FUTEX_WAIT, word, &time, nullptr, 0);
}
}  // namespace

extern "C" {
int64_t table_admit(char *base, int64_t samples) {
  Table table(base);
  bool admitted = admit(table, 0, samples);
  if (admitted && limited(table)) wake(table);
  return admitted;
}

// Counts samples that others have allowed.
void table_count(char *base, int64_t samples) {
  Table table(base);
  {
    Counting counting(table);
    store(table.limit().samples, table.limit().samples + samples);
  }
  wake(table);
}

// A draw is held back for some lanes: those that are empty are wanted until a record is committed.
void table_want(char *base, int64_t count, const int32_t *lanes) {
  Table table(base);
  bool news = false;
  for (int64_t i = 0; i < count; i++) {
    Lane &lane = table.lane(lanes[i]);
    if (load(lane.total) || load(lane.wanted)) continue;
    store(lane.wanted, uint32_t(1));
    news = true;
  }
  if (news) wake(table);  // only then, for else who waits for it would wake itself
}

// Before a last look at the table: any change after this ends a sleep.
uint32_t table_watch(char *base) {
  Limit &limit = Table(base).limit();
  uint32_t seen = load(limit.changes);
  store(limit.sleeping, uint32_t(1));
  std::atomic_thread_fence(std::memory_order_seq_cst);
  return seen;
}

void table_sleep(char *base, uint32_t seen, double seconds) {
  sleep_while(&Table(base).limit().changes, seen, seconds);
}
}
