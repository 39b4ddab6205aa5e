// A replay table in shared memory: see table.py and writer.py for what each call is for.
//
// A record has one writer, who makes its generation odd before the first byte and even after the
// last: a reader that finds another generation after its copy than before has read nothing.
#include "draw.h"
#include "index.h"
#include "kept.h"
#include "rate_limiter.h"
#include "order.h"
#include "barrier.h"
#include "views.h"

#include <cmath>
#include <deque>

namespace {
int64_t committed(const Table &table, int64_t record, double priority, double exponent) {
  Locked locked(table, record / table.header.capacity);
  return commit(table, record, table.header.weighted ? weight_of(priority, exponent) : 1);
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
  pthread_mutex_init(&table.limit().lock, &attributes);
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

// -1 if the table allows no insert now.
int64_t table_commit(char *base, int64_t record, double priority, double exponent) {
  Table table(base);
  if (!admit(table, 1, 0, &table.lane(record / table.header.capacity))) return -1;
  int64_t id = committed(table, record, priority, exponent);
  wake(table);
  return id;
}

void table_append(char *base, int64_t record, int64_t steps, int64_t columns,
                  const int64_t *starts, const int64_t *step_bytes, const char *const *from) {
  Table table(base);
  int64_t done = table.sequential() ? 0 : table.length(record);
  for (int64_t c = 0; c < columns; c++)
    memcpy(table.record(record) + starts[c] + done * step_bytes[c], from[c], steps * step_bytes[c]);
  if (!table.sequential()) store(table.entry(record).length, uint32_t(done + steps));
}

// Whole records, from one of them on. How many are inserted then: fewer if the table allows no
// more now; -1 - that number if a lane has no room.
int64_t table_insert(char *base, int64_t done, int64_t count, const int32_t *lanes,
                     const int32_t *lengths, const double *priorities, double exponent,
                     int64_t columns, const int64_t *starts, const int64_t *step_bytes,
                     const char *const *from, int64_t *ids) {
  Table table(base);
  int64_t i = done;
  for (; i < count && admit(table, 1, 0, &table.lane(lanes[i])); i++) {
    int64_t record = table_begin(base, lanes[i]);
    if (record < 0) {
      withdraw_insert(table);
      return -1 - i;
    }
    for (int64_t c = 0; c < columns; c++)
      memcpy(table.record(record) + starts[c],
             from[c] + i * table.header.length * step_bytes[c], lengths[i] * step_bytes[c]);
    if (!table.sequential()) table.entry(record).length = lengths[i];
    ids[i] = committed(table, record, priorities ? priorities[i] : 1.0, exponent);
  }
  wake(table);
  return i;
}

void table_totals(char *base, uint64_t *totals) {
  Table table(base);
  for (int64_t i = 0; i < table.header.lanes; i++) totals[i] = load(table.lane(i).total);
}

// The records that draws fell on, as ids, with weights and lengths; id -1 where it is to be drawn
// again, for it has changed since. `counted`: which are drawn, and not looked at; null: all.
void table_resolve(char *base, const Place *places, int64_t all_lanes, int64_t count,
                   const int32_t *lane, const uint64_t *offsets, const uint8_t *counted,
                   int64_t *ids, uint64_t *weights, int32_t *lengths) {
  Lanes lanes(base, places, all_lanes);
  // A draw may be a record's last, and is known to the next draw then.
  int64_t together = lanes.header.max_times_sampled ? 1 : GROUP;
  for (int64_t start = 0; start < count; start += together) {
    int64_t size = std::min(together, count - start), slots[GROUP];
    uint64_t left[GROUP];
    bool direct = !lanes.header.weighted;
    for (int64_t i = 0; direct && i < size; i++) {  // all records there are can be drawn
      Table table = lanes.table(lane[start + i]);
      const Lane &its = table.lane(lanes.own(lane[start + i]));
      slots[i] = int64_t(offsets[start + i]);
      if (!table.header.weights)
        slots[i] = Filled(table, lanes.own(lane[start + i])).slot(offsets[start + i]);
      else
        direct = load(its.total) == std::min(load(its.begun), uint64_t(lanes.header.capacity));
    }
    if (!direct) {
      memcpy(left, offsets + start, size * sizeof(uint64_t));
      find(lanes, size, lane + start, left, slots);
    }
    for (int64_t i = 0; i < size; i++) {
      int64_t own = lanes.own(lane[start + i]);
      if (slots[i] >= 0 && !lanes.table(lane[start + i]).sequential())
        touch(&lanes.table(lane[start + i]).entry(own * lanes.header.capacity + slots[i]));
    }
    for (int64_t i = 0; i < size; i++) {
      int64_t at = start + i, own = lanes.own(lane[at]);
      ids[at] = -1;
      if (slots[i] < 0) continue;
      Table table = lanes.table(lane[at]);
      const int64_t record = own * table.header.capacity + slots[i];
      uint32_t generation = table.generation(record), draws = !counted || counted[at];
      weights[at] = table.header.weighted ? table.weight(own, slots[i]) : 1;
      lengths[at] = int32_t(table.length(record));
      if (generation % 2 || !weights[at]) continue;
      if (uint64_t most = table.header.max_times_sampled) {
        // Nobody writes the record now, whose count would be that of the next one.
        Locked locked(table, own);
        Entry &entry = table.entry(record);
        if (entry.generation != generation || !table.weights(own)[slots[i]]) continue;
        entry.sampled += draws;
        if (entry.sampled >= most) set_weight(table, own, slots[i], 0);
        if (entry.sampled > most) continue;  // the last one to draw it died over it
      } else if (draws) {
        table.count_draws(record, 1);
      }
      ids[at] = lanes.id(lane[at], slots[i], generation);
    }
  }
}

// A batch in one call, of whole records: how many random numbers it took; -1, and nothing is drawn,
// if records are lacking or the limit holds it back. `strata`: the lane of each row, for mode 2.
// `found` gets ids, weights, probabilities, lengths and whether each record is whole, and then how
// many rows are to be drawn again, whose id is -1 or which are not whole.
int64_t table_sample(char *base, uint32_t seed, uint32_t stream, uint32_t step, int64_t mode,
                     int64_t count, const int32_t *strata, int64_t columns, const int64_t *starts,
                     const int64_t *step_bytes, char *const *to,
                     int (*in_parts)(void (*)(void *, int64_t), void *, int64_t),
                     int64_t *found) {
  Table table(base);
  int64_t *ids = found;
  uint64_t *weights = (uint64_t *)(found + count);
  double *probabilities = (double *)(found + 2 * count);
  int32_t *lengths = (int32_t *)(found + 3 * count);
  uint8_t *whole = (uint8_t *)(lengths + count);
  const int64_t lanes = table.header.lanes;
  std::vector<uint64_t> totals(lanes), offsets(count);
  std::vector<int32_t> lane(strata, strata + count);
  std::vector<int64_t> each(mode == 2 ? lanes : 0);
  table_totals(base, totals.data());
  int64_t used = table_draw(seed, stream, step, 0, mode, count, lanes, totals.data(), lane.data(),
                            offsets.data());
  if (used < 0 || !table_admit(base, count)) return -1;
  table_resolve(base, nullptr, 0, count, lane.data(), offsets.data(), nullptr, ids, weights,
                lengths);
  for (int64_t i = 0; mode == 2 && i < count; i++) each[lane[i]]++;
  const double total = double(std::accumulate(totals.begin(), totals.end(), uint64_t(0)));
  for (int64_t i = 0; i < count; i++) {
    double all = mode == 2 ? double(totals[lane[i]]) : total;
    probabilities[i] = double(weights[i]) / all;
    if (mode == 2) probabilities[i] = probabilities[i] * double(each[lane[i]]) / double(count);
  }
  table_gather(base, nullptr, 0, count, ids, nullptr, table.header.length, columns, starts,
               step_bytes, to, whole, in_parts);
  found[4 * count] = std::count(whole, whole + count, 0);
  return used;
}

// Which rank gets each row of a batch, whose lanes' holders are known: its holder as far as that
// one's quota goes; then rank by rank what holders have too much of fills what others miss.
void table_assign(int64_t count, const int32_t *lane, const int64_t *holder_of_lane, int64_t ranks,
                  const int64_t *quotas, int64_t *holders, int64_t *getters) {
  std::vector<int64_t> held(ranks), next(ranks), missing;
  for (int64_t i = 0; i < count; i++) held[holders[i] = holder_of_lane[lane[i]]]++;
  for (int64_t rank = 0, moved = 0; rank < ranks; rank++) {
    next[rank] = moved;
    moved += std::max(held[rank] - quotas[rank], int64_t(0));
    missing.insert(missing.end(), std::max(quotas[rank] - held[rank], int64_t(0)), rank);
  }
  std::fill(held.begin(), held.end(), 0);
  for (int64_t i = 0; i < count; i++) {
    int64_t holder = holders[i];
    getters[i] = held[holder]++ < quotas[holder] ? holder : missing[next[holder]++];
  }
}

// The rows of a batch that a rank finds: those that it gets of lanes in its sight, and those of its
// own that others get who are `far`, `[ranks][ranks]`. How many, with their positions in the batch,
// and with ids, probabilities and lengths as of table_resolve, but without offsets. `gone`: how many
// of them are to be drawn again. `least` is the smallest probability of the batch, or where records
// have weights of all rows in its sight.
int64_t table_find(char *base, const Place *places, int64_t all_lanes, int64_t count,
                   const int32_t *lane, const uint64_t *offsets, const double *totals,
                   const int64_t *holder_of_lane, int64_t ranks, const int64_t *quotas,
                   int64_t rank, const uint8_t *far, int64_t *positions, int64_t *ids,
                   double *probabilities, int32_t *lengths, double *least, int64_t *gone) {
  std::vector<int64_t> holders(count), getters(count), rows, seen;
  table_assign(count, lane, holder_of_lane, ranks, quotas, holders.data(), getters.data());
  bool weighted = Table(base).header.weighted;
  for (int64_t i = 0; i < count; i++) {
    bool here = !far[holders[i] * ranks + rank];
    bool sends = holders[i] == rank && far[rank * ranks + getters[i]];
    if (sends || (here && getters[i] == rank)) {
      rows.push_back(i);
    } else if (here && weighted && offsets) {
      seen.push_back(i);
    }
  }
  int64_t found = int64_t(rows.size());
  std::copy(rows.begin(), rows.end(), positions);
  *least = INFINITY;
  *gone = 0;
  for (int64_t i = 0; i < count && !(weighted && offsets); i++)
    *least = std::min(*least, 1 / totals[lane[i]]);
  if (!offsets) return found;
  rows.insert(rows.end(), seen.begin(), seen.end());
  size_t all = rows.size();
  std::vector<int32_t> lanes(all), steps(all);
  std::vector<uint64_t> places_in(all), weights(all);
  std::vector<int64_t> records(all);
  std::vector<uint8_t> counted(all);
  for (size_t i = 0; i < all; i++) {
    lanes[i] = lane[rows[i]];
    places_in[i] = offsets[rows[i]];
    counted[i] = int64_t(i) < found;
  }
  table_resolve(base, places, all_lanes, int64_t(all), lanes.data(), places_in.data(),
                counted.data(), records.data(), weights.data(), steps.data());
  for (size_t i = 0; i < all; i++) {
    double probability = double(weights[i]) / totals[lanes[i]];
    if (records[i] >= 0) *least = std::min(*least, probability);
    if (!counted[i]) continue;
    *gone += records[i] < 0;
    ids[i] = records[i];
    probabilities[i] = probability;
    lengths[i] = steps[i];
  }
  return found;
}

// Draws a batch from known totals, and copies the whole records that a rank gets, all of them in its
// sight. As table_find, with positions, ids, probabilities, lengths, `least` and `gone` in `found`; -1
// if records are lacking or change meanwhile.
int64_t table_share(char *base, const Place *places, int64_t all_lanes, uint32_t seed,
                    uint32_t stream, uint32_t step, int64_t mode, int64_t count,
                    const int32_t *strata, const uint64_t *totals, const int64_t *holder_of_lane,
                    int64_t ranks, const int64_t *quotas, int64_t rank, const uint8_t *far,
                    int64_t columns, const int64_t *starts, const int64_t *step_bytes,
                    char *const *to, int (*in_parts)(void (*)(void *, int64_t), void *, int64_t),
                    int64_t *found) {
  std::vector<int32_t> lane(strata, strata + count);
  std::vector<uint64_t> offsets(count);
  if (table_draw(seed, stream, step, 0, mode, count, all_lanes, totals, lane.data(),
                 offsets.data()) < 0)
    return -1;
  std::vector<int64_t> each(all_lanes);
  for (int32_t one : lane) each[one]++;
  std::vector<double> all(
      all_lanes, double(std::accumulate(totals, totals + all_lanes, uint64_t(0))));
  for (int64_t i = 0; mode == 2 && i < all_lanes; i++)
    all[i] = double(totals[i]) * (double(count) / double(std::max(each[i], int64_t(1))));
  int64_t *ids = found + count, *least = found + 4 * count;
  int64_t rows = table_find(base, places, all_lanes, count, lane.data(), offsets.data(), all.data(),
                            holder_of_lane, ranks, quotas, rank, far, found, ids,
                            (double *)(found + 2 * count), (int32_t *)(found + 3 * count),
                            (double *)least, least + 1);
  std::vector<uint8_t> whole(rows);
  table_gather(base, places, all_lanes, rows, ids, nullptr, Table(base).header.length, columns,
               starts, step_bytes, to, whole.data(), in_parts);
  return std::count(whole.begin(), whole.end(), 0) ? -1 : rows;
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
    if (table.generation(record) != uint32_t(ids[i] / records) * 2) continue;
    int64_t slot = record % table.header.capacity;
    if (!table.weights(at)[slot]) continue;
    set_weight(table, at, slot, weight_of(priorities[i], exponent));
    done++;
  }
  return done;
}
// The first records in an order, see order.h, of all lanes at one moment: ids, weights, lengths.
// `count`, or how many there are if they are fewer, or -1 if the table allows no such samples now.
int64_t table_pick(char *base, int64_t order, int64_t count, int64_t *ids, uint64_t *weights,
                   int32_t *lengths) {
  Table table(base);
  std::deque<Locked> locks;
  for (int64_t lane = 0; lane < table.header.lanes; lane++) locks.emplace_back(table, lane);
  Walk walk(table, order);
  int64_t found = 0, most = table.header.max_times_sampled, capacity = table.header.capacity;
  while (found < count) {
    int64_t record = walk.next();
    if (record < 0) break;
    // The last one to draw it may have died over it.
    if (table.count_draws(record, 1) > most && most) continue;
    ids[found] = table.id(record, table.generation(record));
    weights[found] = table.weight(record / capacity, record % capacity);
    lengths[found++] = int32_t(table.length(record));
  }
  bool taken = found == count && admit(table, 0, count);
  for (int64_t i = 0; i < found; i++) {
    int64_t record = ids[i] % table.records();
    if (!taken) {
      table.count_draws(record, uint32_t(-1));
    } else if (most && load(table.entry(record).sampled) >= most) {
      set_weight(table, record / capacity, record % capacity, 0);
    }
  }
  locks.clear();
  if (taken && limited(table)) wake(table);
  return taken || found < count ? found : -1;
}

// The first records in an order, without a draw: their keys in it, ids, lengths; how many there are.
// A lane's records make way in turn: one that was committed late has the key of the one before it.
int64_t table_peek(char *base, int64_t order, int64_t count, uint64_t *keys, int64_t *ids,
                   int32_t *lengths) {
  Table table(base);
  std::deque<Locked> locks;
  for (int64_t lane = 0; lane < table.header.lanes; lane++) locks.emplace_back(table, lane);
  Walk walk(table, order);
  int64_t found = 0, record;
  std::vector<uint64_t> least(table.header.lanes, UINT64_MAX);
  while (found < count && (record = walk.next(&keys[found])) >= 0) {
    uint64_t &key = least[record / table.header.capacity];
    keys[found] = key = std::min(key, keys[found]);
    ids[found] = table.id(record, table.generation(record));
    lengths[found++] = int32_t(table.length(record));
  }
  return found;
}

// Draws records that are known by their ids: whether each was still to be drawn, and its length.
void table_claim(char *base, const Place *places, int64_t all_lanes, int64_t count,
                 const int64_t *ids, bool *claimed, int32_t *lengths) {
  Lanes lanes(base, places, all_lanes);
  for (int64_t i = 0; i < count; i++) {
    auto [table, record, generation] = lanes.record(ids[i]);
    uint64_t most = table.header.max_times_sampled;
    int64_t lane = record / table.header.capacity, slot = record % table.header.capacity;
    Locked locked(table, lane);
    lengths[i] = int32_t(table.length(record));
    claimed[i] = table.generation(record) == generation && table.weight(lane, slot) &&
                 (table.count_draws(record, 1) <= most || !most);
    if (claimed[i] && most && load(table.entry(record).sampled) >= most)
      set_weight(table, lane, slot, 0);
  }
}

// Gives draws back, with the weights that the records had.
void table_release(char *base, const Place *places, int64_t all_lanes, int64_t count,
                   const int64_t *ids, const uint64_t *weights) {
  Lanes lanes(base, places, all_lanes);
  for (int64_t i = 0; i < count; i++) {
    if (ids[i] < 0) continue;
    auto [table, record, generation] = lanes.record(ids[i]);
    int64_t lane = record / table.header.capacity, slot = record % table.header.capacity;
    Locked locked(table, lane);
    if (table.generation(record) != generation) continue;
    table.count_draws(record, uint32_t(-1));
    if (!table.weight(lane, slot)) set_weight(table, lane, slot, weights[i]);
  }
}

// Sums that somebody left half changed who died are made anew.
void table_mend(char *base) {
  Table table(base);
  for (int64_t lane = 0; lane < table.header.lanes; lane++) Locked locked(table, lane);
}
}
