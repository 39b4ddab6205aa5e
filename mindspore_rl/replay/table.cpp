// A replay table in shared memory: see table.py for the layout and for what each call is for.
//
// A record has one writer, who makes its generation odd before the first byte and even after the
// last: a reader that finds another generation after its copy than before has read nothing. Weights
// and their sums change under the lane's lock; it is a robust mutex, and who finds that its holder
// has died rebuilds the sums. Readers take no lock: between two additions of an update a draw may
// fall beside every record, and is drawn again.
#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

namespace {
constexpr int64_t FANOUT = 16;  // two cache lines of children
constexpr int64_t GROUP = 32;   // draws whose memory is fetched together
constexpr double LARGEST = 1099511627776.0;  // 2^40: 2^23 records of it fit a total

struct Header {
  char magic[8];
  int64_t spec_bytes, lanes, capacity, length, record_bytes, max_times_sampled, weighted;
  int64_t lane_offset, entry_offset, weight_offset, weights, tree_offset, nodes, data_offset;
};
struct alignas(64) Lane {
  pthread_mutex_t lock;  // 40 bytes
  uint32_t session;      // counts its writers
  uint32_t unused;
  uint64_t begun, committed, total, pad[7];
};
static_assert(sizeof(Lane) == 128, "as in table.py");
struct Entry {
  uint32_t generation, length;
  uint64_t order;
  uint32_t sampled, session;
  uint64_t unused;
};
static_assert(sizeof(Entry) == 32, "as in table.py");

template <class T> T load(const T &place) {
  return __atomic_load_n(&place, __ATOMIC_ACQUIRE);
}
template <class T> void store(T &place, T value) {
  __atomic_store_n(&place, value, __ATOMIC_RELEASE);
}

struct Table {
  char *base;
  const Header &header;
  explicit Table(char *base) : base(base), header(*(const Header *)base) {}

  Lane &lane(int64_t i) const { return ((Lane *)(base + header.lane_offset))[i]; }
  Entry &entry(int64_t record) const { return ((Entry *)(base + header.entry_offset))[record]; }
  uint64_t *weights(int64_t lane) const {
    return (uint64_t *)(base + header.weight_offset) + lane * header.weights;
  }
  uint64_t *tree(int64_t lane) const {
    return (uint64_t *)(base + header.tree_offset) + lane * header.nodes;
  }
  char *record(int64_t i) const { return base + header.data_offset + i * header.record_bytes; }
  int64_t records() const { return header.lanes * header.capacity; }
  int64_t id(int64_t record, uint32_t generation) const {
    return int64_t(generation / 2) * records() + record;
  }
};

// The sizes of a lane's levels of sums, each a multiple of FANOUT, from above the weights up.
struct Levels {
  int64_t count = 0, size[16];
  explicit Levels(int64_t weights) {
    while (weights > FANOUT) {
      weights = (weights / FANOUT + FANOUT - 1) / FANOUT * FANOUT;
      size[count++] = weights;
    }
  }
};

void set_weight(const Table &table, int64_t lane, int64_t slot, uint64_t value) {
  uint64_t *place = table.weights(lane) + slot;
  uint64_t change = value - *place;  // modulo 2^64, as are the sums
  if (!change) return;
  store(*place, value);
  uint64_t *sums = table.tree(lane);
  Levels levels(table.header.weights);
  for (int64_t level = 0; level < levels.count; level++) {
    slot /= FANOUT;
    store(sums[slot], sums[slot] + change);
    sums += levels.size[level];
  }
  store(table.lane(lane).total, table.lane(lane).total + change);
}

void rebuild(const Table &table, int64_t lane) {
  const uint64_t *below = table.weights(lane);
  uint64_t *sums = table.tree(lane), total = 0;
  Levels levels(table.header.weights);
  int64_t size = table.header.weights;
  for (int64_t level = 0; level < levels.count; level++) {
    for (int64_t i = 0; i < levels.size[level]; i++) {
      uint64_t sum = 0;
      for (int64_t j = i * FANOUT; j < std::min((i + 1) * FANOUT, size); j++) sum += below[j];
      store(sums[i], sum);
    }
    below = sums;
    size = levels.size[level];
    sums += size;
  }
  for (int64_t i = 0; i < size; i++) total += below[i];
  store(table.lane(lane).total, total);
}

class Locked {
 public:
  Locked(const Table &table, int64_t lane) : mutex_(&table.lane(lane).lock) {
    if (pthread_mutex_lock(mutex_) == EOWNERDEAD) {
      rebuild(table, lane);
      pthread_mutex_consistent(mutex_);
    }
  }
  ~Locked() { pthread_mutex_unlock(mutex_); }

 private:
  pthread_mutex_t *mutex_;
};

// A record to be written, the oldest of the lane, or -1 if the writer has all of them open.
int64_t begin(const Table &table, int64_t at) {
  Lane &lane = table.lane(at);
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
  Entry &entry = table.entry(record);
  entry.order = table.lane(at).committed;
  store(entry.generation, entry.generation + 1);
  store(table.lane(at).committed, table.lane(at).committed + 1);
  set_weight(table, at, record % table.header.capacity, weight);
  return table.id(record, entry.generation);
}

uint64_t weight_of(double priority, double exponent) {
  double weight = exponent == 1.0 ? priority : std::pow(priority, exponent);
  return uint64_t(std::min(std::max(std::rint(weight * 1048576.0), 1.0), LARGEST));
}

inline uint64_t high(uint64_t a, uint64_t b) {
  return uint64_t((unsigned __int128)a * b >> 64);
}

// Threefry2x32-20, as mindspore_rl/rl/random.py.
uint64_t random_bits(uint32_t seed, uint32_t stream, uint32_t step, uint32_t index) {
  static const int turns[2][4] = {{13, 15, 26, 6}, {17, 29, 16, 24}};
  uint32_t key[3] = {seed, stream, seed ^ stream ^ 0x1BD11BDAu};
  uint32_t x = step + key[0], y = index + key[1];
  for (uint32_t group = 0; group < 5; group++) {
    for (int turn : turns[group % 2]) {
      x += y;
      y = (y << turn | y >> (32 - turn)) ^ x;
    }
    x += key[(group + 1) % 3];
    y += key[(group + 2) % 3] + group + 1;
  }
  return uint64_t(x) << 32 | y;
}

// Where in the lane each of a group of draws falls; -1 beside every record.
void find(const Table &table, int64_t count, const int32_t *lanes, uint64_t *offsets,
          int64_t *slots) {
  Levels levels(table.header.weights);
  const uint64_t *sums[GROUP];
  int64_t start = 0;
  for (int64_t level = 0; level + 1 < levels.count; level++) start += levels.size[level];
  for (int64_t i = 0; i < count; i++) slots[i] = 0;
  for (int64_t level = levels.count; level >= 0; level--) {
    for (int64_t i = 0; i < count; i++)
      sums[i] = level ? table.tree(lanes[i]) + start : table.weights(lanes[i]);
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
        const uint64_t *next =
            level > 1 ? sums[i] - levels.size[level - 2] : table.weights(lanes[i]);
        __builtin_prefetch(next + slots[i]);
        __builtin_prefetch(next + slots[i] + FANOUT / 2);
      }
    }
    if (level > 1) start -= levels.size[level - 2];
  }
}
}  // namespace

extern "C" {
// Of a piece of a file: eight sums side by side, as one multiplication waits for the one before.
uint64_t table_checksum(const char *data, int64_t bytes, uint64_t start) {
  uint64_t sums[8], word;
  for (uint64_t i = 0; i < 8; i++) sums[i] = start + i;
  int64_t at = 0;
  for (; at + 64 <= bytes; at += 64)
    for (int64_t i = 0; i < 8; i++) {
      memcpy(&word, data + at + 8 * i, 8);
      sums[i] = (sums[i] ^ word) * 0x9E3779B97F4A7C15u;
      sums[i] ^= sums[i] >> 32;
    }
  for (; at < bytes; at++) sums[0] = (sums[0] ^ uint8_t(data[at])) * 0x100000001B3u;
  for (int64_t i = 1; i < 8; i++) sums[0] = (sums[0] ^ sums[i]) * 0x9E3779B97F4A7C15u;
  return sums[0] ^ sums[0] >> 29;
}

// A new table whose header is written, or one that nobody else has open.
void table_init(char *base) {
  Table table(base);
  pthread_mutexattr_t attributes;
  pthread_mutexattr_init(&attributes);
  pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
  pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
  for (int64_t lane = 0; lane < table.header.lanes; lane++) {
    pthread_mutex_init(&table.lane(lane).lock, &attributes);
    rebuild(table, lane);
  }
  pthread_mutexattr_destroy(&attributes);
}

// A writer takes a lane: what the one before it has left open may be written again.
void table_take(char *base, int64_t at) {
  Table table(base);
  Locked locked(table, at);
  table.lane(at).session++;
}

int64_t table_begin(char *base, int64_t at) {
  Table table(base);
  Locked locked(table, at);
  return begin(table, at);
}

int64_t table_commit(char *base, int64_t record, double priority, double exponent) {
  Table table(base);
  Locked locked(table, record / table.header.capacity);
  return commit(table, record, table.header.weighted ? weight_of(priority, exponent) : 1);
}

void table_append(char *base, int64_t record, int64_t steps, int64_t columns,
                  const int64_t *starts, const int64_t *step_bytes, const char *const *from) {
  Table table(base);
  Entry &entry = table.entry(record);
  for (int64_t c = 0; c < columns; c++)
    memcpy(table.record(record) + starts[c] + entry.length * step_bytes[c], from[c],
           steps * step_bytes[c]);
  store(entry.length, entry.length + uint32_t(steps));
}

// Whole records; how many there was room for.
int64_t table_insert(char *base, int64_t count, const int32_t *lanes, const int32_t *lengths,
                     const double *priorities, double exponent, int64_t columns,
                     const int64_t *starts, const int64_t *step_bytes, const char *const *from,
                     int64_t *ids) {
  Table table(base);
  for (int64_t i = 0; i < count; i++) {
    int64_t record = table_begin(base, lanes[i]);
    if (record < 0) return i;
    for (int64_t c = 0; c < columns; c++)
      memcpy(table.record(record) + starts[c],
             from[c] + i * table.header.length * step_bytes[c], lengths[i] * step_bytes[c]);
    table.entry(record).length = lengths[i];
    ids[i] = table_commit(base, record, priorities ? priorities[i] : 1.0, exponent);
  }
  return count;
}

void table_totals(char *base, uint64_t *totals) {
  Table table(base);
  for (int64_t i = 0; i < table.header.lanes; i++) totals[i] = load(table.lane(i).total);
}

// Draws of lanes and of places in them, from the lanes' totals alone: the same on every rank.
// mode 0: with replacement; 1: without; 2: stratified by lane. How many random numbers it took,
// or -1 if there is nothing to draw, for mode 1 less than asked for.
int64_t table_draw(uint32_t seed, uint32_t stream, uint32_t step, uint32_t first, int64_t mode,
                   int64_t count, int64_t lanes, const uint64_t *totals, int32_t *lane,
                   uint64_t *offset) {
  std::vector<uint64_t> ends(lanes), taken;
  uint64_t total = 0;
  for (int64_t i = 0; i < lanes; i++) {
    if (mode == 2 && !totals[i]) return -1;
    ends[i] = total += totals[i];
  }
  if (!total || (mode == 1 && total < uint64_t(count))) return -1;
  uint64_t mask = 0;
  if (mode == 1) {
    for (mask = 1; mask < uint64_t(2 * count); mask *= 2) {}
    taken.assign(mask--, UINT64_MAX);
  }
  uint32_t index = first;
  for (int64_t i = 0; i < count; i++) {
    uint64_t bits = random_bits(seed, stream, step, index++);
    if (mode == 2) {
      lane[i] = int32_t(i * lanes / count);
      offset[i] = high(bits, totals[lane[i]]);
      continue;
    }
    uint64_t at = high(bits, total);
    if (mode == 1) {
      uint64_t place = at * 0x9E3779B97F4A7C15u >> 20 & mask;
      while (taken[place] != UINT64_MAX && taken[place] != at) place = (place + 1) & mask;
      if (taken[place] == at) {
        i--;
        continue;
      }
      taken[place] = at;
    }
    int64_t found = std::upper_bound(ends.begin(), ends.end(), at) - ends.begin();
    lane[i] = int32_t(found);
    offset[i] = at - (found ? ends[found - 1] : 0);
  }
  return int64_t(index - first);
}

// The records that draws fell on, as ids, with weights and lengths; id -1 where it is to be drawn
// again, for it has changed since. How many were found.
int64_t table_resolve(char *base, int64_t count, const int32_t *lanes, const uint64_t *offsets,
                      int64_t *ids, uint64_t *weights, int32_t *lengths) {
  Table table(base);
  int64_t found = 0;
  for (int64_t start = 0; start < count; start += GROUP) {
    int64_t size = std::min(GROUP, count - start), slots[GROUP];
    uint64_t left[GROUP];
    bool direct = !table.header.weighted;
    for (int64_t i = 0; direct && i < size; i++) {  // all records there are can be drawn
      const Lane &lane = table.lane(lanes[start + i]);
      slots[i] = int64_t(offsets[start + i]);
      direct = load(lane.total) == std::min(load(lane.begun), uint64_t(table.header.capacity));
    }
    if (!direct) {
      memcpy(left, offsets + start, size * sizeof(uint64_t));
      find(table, size, lanes + start, left, slots);
    }
    for (int64_t i = 0; i < size; i++)
      if (slots[i] >= 0)
        __builtin_prefetch(&table.entry(lanes[start + i] * table.header.capacity + slots[i]));
    for (int64_t i = 0; i < size; i++) {
      int64_t at = start + i, record = lanes[at] * table.header.capacity + slots[i];
      ids[at] = -1;
      if (slots[i] < 0) continue;
      Entry &entry = table.entry(record);
      uint32_t generation = load(entry.generation);
      weights[at] = table.header.weighted ? load(table.weights(lanes[at])[slots[i]]) : 1;
      lengths[at] = int32_t(entry.length);
      if (generation % 2 || !weights[at]) continue;
      uint32_t times = __atomic_add_fetch(&entry.sampled, 1, __ATOMIC_RELAXED);
      if (table.header.max_times_sampled && times >= table.header.max_times_sampled) {
        Locked locked(table, lanes[at]);
        if (times > table.header.max_times_sampled) continue;  // another reader was faster
        if (entry.generation == generation) set_weight(table, lanes[at], slots[i], 0);
      }
      ids[at] = table.id(record, generation);
      found++;
    }
  }
  return found;
}

// Copies steps of records to rows of column after column; what lies behind a record's end is 0.
// How many rows were whole; `whole` is 0 where the record has been overwritten.
int64_t table_gather(char *base, int64_t count, const int64_t *ids, const int32_t *first,
                     int64_t window, int64_t columns, const int64_t *starts,
                     const int64_t *step_bytes, char *const *to, uint8_t *whole) {
  Table table(base);
  int64_t records = table.records(), done = 0;
  for (int64_t i = 0; i < count; i++) {
    if (i + 8 < count && table.header.record_bytes <= 1024) {
      __builtin_prefetch(table.record(ids[i + 8] % records));
      __builtin_prefetch(&table.entry(ids[i + 8] % records));
    }
    int64_t record = ids[i] % records;
    Entry &entry = table.entry(record);
    uint32_t generation = uint32_t(ids[i] / records) * 2;
    whole[i] = 0;
    if (ids[i] < 0 || load(entry.generation) != generation) continue;
    int64_t start = first ? first[i] : 0;
    int64_t length = std::min(window, std::max(int64_t(entry.length) - start, int64_t(0)));
    for (int64_t c = 0; c < columns; c++) {
      char *row = to[c] + i * window * step_bytes[c];
      memcpy(row, table.record(record) + starts[c] + start * step_bytes[c],
             length * step_bytes[c]);
      if (length < window)
        memset(row + length * step_bytes[c], 0, (window - length) * step_bytes[c]);
    }
    std::atomic_thread_fence(std::memory_order_acquire);
    whole[i] = __atomic_load_n(&entry.generation, __ATOMIC_RELAXED) == generation;
    done += whole[i];
  }
  return done;
}

// Gives records new weights, but for those that have been overwritten or may not be drawn any
// more; how many got one.
int64_t table_update(char *base, int64_t count, const int64_t *ids, const double *priorities,
                     double exponent) {
  Table table(base);
  int64_t records = table.records(), done = 0;
  for (int64_t i = 0; i < count; i++) {
    int64_t record = ids[i] % records, at = record / table.header.capacity;
    if (ids[i] < 0) continue;
    Locked locked(table, at);
    if (table.entry(record).generation != uint32_t(ids[i] / records) * 2) continue;
    int64_t slot = record % table.header.capacity;
    if (!table.weights(at)[slot]) continue;
    set_weight(table, at, slot, weight_of(priorities[i], exponent));
    done++;
  }
  return done;
}

// The records of a lane that can be drawn and were committed first, or have the largest weights
// (`largest`; of equal ones those committed first): ids, orders and weights. How many.
int64_t table_best(char *base, int64_t at, int64_t count, int64_t largest, int64_t *ids,
                   uint64_t *orders, uint64_t *weights) {
  Table table(base);
  Locked locked(table, at);
  std::vector<int64_t> slots;
  for (int64_t slot = 0; slot < table.header.capacity; slot++)
    if (table.weights(at)[slot]) slots.push_back(slot);
  auto order = [&](int64_t slot) { return table.entry(at * table.header.capacity + slot).order; };
  auto before = [&](int64_t a, int64_t b) {
    uint64_t x = table.weights(at)[a], y = table.weights(at)[b];
    return largest && x != y ? x > y : order(a) < order(b);
  };
  count = std::min(count, int64_t(slots.size()));
  std::partial_sort(slots.begin(), slots.begin() + count, slots.end(), before);
  for (int64_t i = 0; i < count; i++) {
    int64_t record = at * table.header.capacity + slots[i];
    ids[i] = table.id(record, table.entry(record).generation);
    orders[i] = order(slots[i]);
    weights[i] = table.weights(at)[slots[i]];
  }
  return count;
}
}
