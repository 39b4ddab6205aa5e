// The parts of a replay table, see spec.py, and the sums and maxima of its weights.
//
// Weights, sums and maxima change under the lane's lock; it is a robust mutex, and who finds that
// its holder has died rebuilds them. Random draws take no lock, but to count those of a record that
// may be drawn so often and no more: between two additions of an update one may fall beside every
// record, and is drawn again.
//
// Each record has an entry, but not in a sequential table: its records are single steps that are
// written one after the other, so the counts of their lane tell what an entry would. Without weights,
// nothing else belongs to a record then.
#pragma once
#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <vector>

namespace {
constexpr int64_t FANOUT = 16;  // two cache lines of children
constexpr int64_t GROUP = 32;   // draws whose memory is fetched together
constexpr uint64_t ONE = 1 << 20;           // the weight of a priority of 1, as in spec.py
constexpr double LARGEST = 1099511627776.0;  // 2^40: 2^23 records of it fit a total

struct Header {
  char magic[8];
  int64_t spec_bytes, lanes, capacity, length, record_bytes, max_times_sampled, weighted;
  int64_t min_records;
  double samples_per_insert, slack;
  int64_t limit_offset, lane_offset, entry_offset, weight_offset, weights, tree_offset, nodes;
  int64_t data_offset;
};
struct Post {
  int64_t inserts, samples, over;
};
struct alignas(64) Limit {
  pthread_mutex_t lock;
  uint32_t changes, sleeping;  // see rate_limiter.h
  int64_t inserts, samples;
  uint64_t posts;  // see barrier.h
  Post post[2];
  uint32_t waiting;
};
static_assert(sizeof(Limit) == 128, "as in spec.py");
struct alignas(64) Lane {
  pthread_mutex_t lock;  // 40 bytes
  uint32_t session;      // counts its writers
  uint32_t wanted;       // a draw is held back for its records, see rate_limiter.h
  uint64_t begun, committed, total;
  uint64_t post[2];  // see barrier.h
  uint32_t opened;   // the session of the last record that was begun, in a sequential table
  uint32_t pad[9];
};
static_assert(sizeof(Lane) == 128, "as in spec.py");
struct Entry {
  uint32_t generation, length;
  uint64_t order;
  uint32_t sampled, session;
  uint64_t unused;
};
static_assert(sizeof(Entry) == 32, "as in spec.py");

template <class T> T load(const T &place) {
  return __atomic_load_n(&place, __ATOMIC_ACQUIRE);
}
// Has a byte in the cache that is used soon. Loads that do not depend on each other wait for memory
// together; a prefetch is dropped by processors that do not know the page's address yet.
inline void touch(const void *place) { (void)*(const volatile char *)place; }
template <class T> void store(T &place, T value) {
  __atomic_store_n(&place, value, __ATOMIC_RELEASE);
}

struct Table {
  char *base;
  const Header &header;
  explicit Table(char *base) : base(base), header(*(const Header *)base) {}

  Limit &limit() const { return *(Limit *)(base + header.limit_offset); }
  Lane &lane(int64_t i) const { return ((Lane *)(base + header.lane_offset))[i]; }
  Entry &entry(int64_t record) const { return ((Entry *)(base + header.entry_offset))[record]; }
  uint64_t *weights(int64_t lane) const {
    return (uint64_t *)(base + header.weight_offset) + lane * header.weights;
  }
  uint64_t *sums(int64_t lane) const {
    return (uint64_t *)(base + header.tree_offset) + lane * header.nodes * (1 + header.weighted);
  }
  uint64_t *maxima(int64_t lane) const { return sums(lane) + header.nodes; }  // if weighted
  char *record(int64_t i) const { return base + header.data_offset + i * header.record_bytes; }
  int64_t records() const { return header.lanes * header.capacity; }

  bool sequential() const { return header.entry_offset == header.weight_offset; }
  // How often the record in a slot was written, twice, and less 1 while it is being written.
  uint32_t generation(int64_t record) const {
    if (!sequential()) return load(entry(record).generation);
    const uint64_t size = header.capacity, rest = size - 1 - uint64_t(record) % size;
    const Lane &its = lane(record / header.capacity);
    const uint64_t begun = (load(its.begun) + rest) / size, done = (load(its.committed) + rest) / size;
    return uint32_t(2 * begun - (begun != done));
  }
  // How many records of its lane were committed before it.
  uint64_t order(int64_t record) const {
    if (!sequential()) return entry(record).order;
    const uint64_t size = header.capacity;
    return uint64_t((generation(record) + 1) / 2 - 1) * size + uint64_t(record) % size;
  }
  int64_t length(int64_t record) const { return sequential() ? 1 : int64_t(entry(record).length); }
  uint64_t weight(int64_t lane, int64_t slot) const {
    return header.weights ? load(weights(lane)[slot]) : 1;
  }
  // Counts draws of a record. Returns: of how many it is the last, 0 where they are not counted.
  uint32_t count_draws(int64_t record, uint32_t draws) const {
    return sequential() ? 0 : __atomic_add_fetch(&entry(record).sampled, draws, __ATOMIC_RELAXED);
  }
  int64_t id(int64_t record, uint32_t generation) const {
    return int64_t(generation / 2) * records() + record;
  }
};

// Where a lane of a table stands that is spread over several.
struct Place {
  char *base;  // 0: this process has not mapped it
  int64_t lane;
};

// The lanes of one table, or of a whole of several; with ids of the whole.
class Lanes {
 public:
  struct Record {
    Table table;
    int64_t at;
    uint32_t generation;
  };

  // `places` is null for those of the table at `base`; else that is any of the tables.
  Lanes(char *base, const Place *places, int64_t lanes)
      : header(Table(base).header), base_(base), places_(places),
        records_((places ? lanes : header.lanes) * header.capacity) {}

  Table table(int64_t lane) const { return Table(places_ ? places_[lane].base : base_); }
  int64_t own(int64_t lane) const { return places_ ? places_[lane].lane : lane; }
  // Of an id that is not negative.
  Record record(int64_t id) const {
    int64_t at = id % records_;
    uint32_t generation = uint32_t(id / records_) * 2;
    if (!places_) return {Table(base_), at, generation};
    int64_t lane = at / header.capacity;
    return {table(lane), at + (own(lane) - lane) * header.capacity, generation};
  }
  int64_t id(int64_t lane, int64_t slot, uint32_t generation) const {
    return int64_t(generation / 2) * records_ + lane * header.capacity + slot;
  }

  const Header &header;  // what is the same in all of them

 private:
  char *base_;
  const Place *places_;
  int64_t records_;
};

// Where a lane's levels of sums begin, from above the weights up, and their sizes, each a multiple
// of FANOUT.
struct Levels {
  int64_t count = 0, start[16], size[16];
  explicit Levels(int64_t weights) {
    for (int64_t at = 0; weights > FANOUT; at += weights) {
      weights = (weights / FANOUT + FANOUT - 1) / FANOUT * FANOUT;
      start[count] = at;
      size[count++] = weights;
    }
  }
};

uint64_t weight_of(double priority, double exponent) {
  double weight = exponent == 1.0 ? priority : std::pow(priority, exponent);
  return uint64_t(std::min(std::max(std::rint(weight * double(ONE)), 1.0), LARGEST));
}

uint64_t largest(const uint64_t *group) { return *std::max_element(group, group + FANOUT); }

// Changes nothing in a table without weights, where `count_filled` counts.
void set_weight(const Table &table, int64_t lane, int64_t slot, uint64_t value) {
  if (!table.header.weights) return;
  uint64_t *below = table.weights(lane), *sums = table.sums(lane), *maxima = table.maxima(lane);
  uint64_t before = below[slot], change = value - before;  // modulo 2^64, as are the sums
  if (!change) return;
  store(below[slot], value);
  Levels levels(table.header.weights);
  bool higher = table.header.weighted;
  for (int64_t level = 0; level < levels.count; level++) {
    slot /= FANOUT;
    store(sums[slot], sums[slot] + change);
    if (higher) {
      uint64_t old = maxima[slot];
      if (value <= old) value = before == old ? largest(below + slot * FANOUT) : old;
      store(maxima[slot], value);
      before = old;
      higher = value != old;
      below = maxima;
      maxima += levels.size[level];
    }
    sums += levels.size[level];
  }
  store(table.lane(lane).total, table.lane(lane).total + change);
}

// Of a sequential table without weights: the slots from 0 on that have a record, and which of them is
// being written; -1: none is.
struct Filled {
  int64_t slots, open;
  explicit Filled(const Table &table, int64_t lane) {
    const uint64_t begun = load(table.lane(lane).begun), size = table.header.capacity;
    slots = int64_t(std::min(begun, size));
    open = begun == load(table.lane(lane).committed) ? -1 : int64_t((begun - 1) % size);
  }
  uint64_t total() const { return uint64_t(slots - (open >= 0)); }
  // Of a place among those that can be drawn; -1 beside them.
  int64_t slot(uint64_t place) const {
    if (place >= total()) return -1;
    return int64_t(place) + (open >= 0 && int64_t(place) >= open);
  }
};

// The counts of a lane have changed: in a table without weights, its total follows from them.
void count_filled(const Table &table, int64_t lane) {
  if (!table.header.weights) store(table.lane(lane).total, Filled(table, lane).total());
}

void rebuild(const Table &table, int64_t lane) {
  if (!table.header.weights) return count_filled(table, lane);
  const uint64_t *below = table.weights(lane), *below_maxima = below;
  uint64_t *sums = table.sums(lane), *maxima = table.maxima(lane);
  Levels levels(table.header.weights);
  int64_t size = table.header.weights;
  for (int64_t level = 0; level < levels.count; level++) {
    for (int64_t i = 0; i < levels.size[level]; i++) {
      bool any = i * FANOUT < size;  // sizes are rounded up
      const uint64_t *group = below + i * FANOUT;
      store(sums[i], any ? std::accumulate(group, group + FANOUT, uint64_t(0)) : 0);
      if (table.header.weighted) store(maxima[i], any ? largest(below_maxima + i * FANOUT) : 0);
    }
    below = sums;
    below_maxima = maxima;
    size = levels.size[level];
    sums += size;
    maxima += size;
  }
  store(table.lane(lane).total, std::accumulate(below, below + size, uint64_t(0)));
}

class Locked {
 public:
  Locked(const Table &table, int64_t lane) : mutex_(&table.lane(lane).lock) {
    if (pthread_mutex_lock(mutex_) == EOWNERDEAD) {
      rebuild(table, lane);
      pthread_mutex_consistent(mutex_);
    }
  }
  Locked(const Locked &) = delete;
  ~Locked() { pthread_mutex_unlock(mutex_); }

 private:
  pthread_mutex_t *mutex_;
};

// Where in the lane each of a group of draws falls; -1 beside every record.
void find(const Lanes &lanes, int64_t count, const int32_t *lane, uint64_t *offsets,
          int64_t *slots) {
  Levels levels(lanes.header.weights);
  const uint64_t *sums[GROUP], *weights[GROUP], *bottom[GROUP];
  for (int64_t i = 0; i < count; i++) {
    Table table = lanes.table(lane[i]);
    slots[i] = 0;
    weights[i] = table.weights(lanes.own(lane[i]));
    bottom[i] = table.sums(lanes.own(lane[i]));
  }
  for (int64_t level = levels.count; level >= 0; level--) {
    for (int64_t i = 0; i < count; i++)
      sums[i] = level ? bottom[i] + levels.start[level - 1] : weights[i];
    for (int64_t i = 0; i < count; i++) {
      if (slots[i] < 0) continue;
      const uint64_t *children = sums[i] + slots[i];
      int64_t child = 0;
      for (; child < FANOUT && offsets[i] >= load(children[child]); child++)
        offsets[i] -= children[child];
      slots[i] = child == FANOUT ? -1 : slots[i] + child;
      if (slots[i] < 0) continue;
      if (level) {
        slots[i] *= FANOUT;
        const uint64_t *next = level > 1 ? sums[i] - levels.size[level - 2] : weights[i];
        __builtin_prefetch(next + slots[i]);
        __builtin_prefetch(next + slots[i] + FANOUT / 2);
      }
    }
  }
}

// A record to be written, the oldest of the lane, or -1 if the writer has all of them open, in a
// sequential table one.
int64_t begin(const Table &table, int64_t at) {
  Lane &lane = table.lane(at);
  if (table.sequential()) {
    const int64_t slot = int64_t(lane.committed % uint64_t(table.header.capacity));
    if (lane.begun != lane.committed && lane.opened == lane.session) return -1;
    lane.opened = lane.session;
    set_weight(table, at, slot, 0);
    store(lane.begun, lane.committed + 1);
    count_filled(table, at);
    std::atomic_thread_fence(std::memory_order_release);
    return at * table.header.capacity + slot;
  }
  for (int64_t tried = 0; tried < table.header.capacity; tried++) {
    int64_t slot = lane.begun % table.header.capacity;
    int64_t record = at * table.header.capacity + slot;
    Entry &entry = table.entry(record);
    bool open = entry.generation % 2;
    store(lane.begun, lane.begun + 1);
    if (open && entry.session == lane.session) continue;
    set_weight(table, at, slot, 0);
    if (!open) __atomic_store_n(&entry.generation, entry.generation + 1, __ATOMIC_RELAXED);
    std::atomic_thread_fence(std::memory_order_release);
    entry.length = entry.sampled = 0;
    entry.session = lane.session;
    return record;
  }
  return -1;
}

int64_t commit(const Table &table, int64_t record, uint64_t weight) {
  int64_t at = record / table.header.capacity;
  if (!table.sequential()) {
    Entry &entry = table.entry(record);
    entry.order = table.lane(at).committed;
    store(entry.generation, entry.generation + 1);
  }
  store(table.lane(at).committed, table.lane(at).committed + 1);
  set_weight(table, at, record % table.header.capacity, weight);
  count_filled(table, at);
  store(table.lane(at).wanted, uint32_t(0));
  return table.id(record, table.generation(record));
}
}  // namespace
