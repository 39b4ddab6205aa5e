// What a Python loop keeps, see kept_table.py: a sequential table in which each environment has a lane.
// One thread calls, and no other process has the table.
//
// Arrays come as Python objects, or tuples of them, and are looked up in these: NumPy takes longer to
// tell one address than it takes to copy ten records.
#pragma once
#include "copying.h"
#include "index.h"

namespace {
// As kept_table.py lays it out.
struct Kept {
  int64_t address, items;  // where they are in an array's object, and in a tuple
  int64_t on_disk;         // whether the table is in a file that may not fit memory
  char *base;              // of the table
  int64_t count;
  struct {
    int64_t start, bytes;  // in a record
  } columns[];

  Table table() const { return Table(base); }
  template <class T> T *data(const char *array) const { return *(T *const *)(array + address); }
  // The arrays of a tuple, one for each column.
  std::vector<char *> all(const char *tuple) const {
    std::vector<char *> found(count);
    for (int64_t c = 0; c < count; c++)
      found[c] = data<char>(((const char *const *)(tuple + items))[c]);
    return found;
  }
};

int64_t inserted(const Table &table, int64_t lane) { return int64_t(table.lane(lane).committed); }
int64_t filled(const Table &table, int64_t lane) {
  return std::min(inserted(table, lane), table.header.capacity);
}
int64_t next_slot(const Table &table, int64_t lane) {
  return inserted(table, lane) % table.header.capacity;
}

// A random number below a count, see rl/random.py: of `each` numbers, behind which are as many
// whose bits are lower.
int64_t below(const float *number, int64_t each, double count) {
  return int64_t((double(number[0]) + double(number[each]) * 0x1p-24) * count);
}

// Has the system read what will be copied.
void announce(const Table &table, int64_t count, const int64_t *slots, const int64_t *lanes,
              int64_t steps) {
  Announced announced;
  const int64_t size = table.header.capacity;
  for (int64_t i = 0; i < count; i++)
    for (int64_t slot = slots[i], left = steps; left > 0; slot = 0) {
      int64_t run = std::min(left, size - slot), lane = lanes ? lanes[i] : i % table.header.lanes;
      announced.add(table.record(lane * size + slot), run * table.header.record_bytes);
      left -= run;
    }
}

// Windows of records from slots on, of the given lanes or of all in turn. False if there is no such
// slot or lane.
bool gather(const Kept &kept, int64_t count, const int64_t *slots, const int64_t *lanes,
            int64_t steps, const char *to) {
  const Table table = kept.table();
  const int64_t size = table.header.capacity, all = table.header.lanes;
  for (int64_t i = 0; i < count; i++)
    if (uint64_t(slots[i]) >= uint64_t(size) || (lanes && uint64_t(lanes[i]) >= uint64_t(all)))
      return false;
  if (kept.on_disk) announce(table, count, slots, lanes, steps);
  std::vector<char *> out = kept.all(to);
  int64_t lane = 0, ahead = 0, next = 0;
  auto after = [&](int64_t turn) { return turn + 1 == all ? 0 : turn + 1; };
  for (int64_t i = 0; i < count; i++, lane = after(lane)) {
    // Not `touch`: the copies would wait for its loads, which take four times as long together.
    for (; next < std::min(i + GROUP, count); next++, ahead = after(ahead)) {
      const char *record = table.record((lanes ? lanes[next] : ahead) * size + slots[next]);
      for (int64_t c = 0; c < kept.count; c++) __builtin_prefetch(record + kept.columns[c].start);
    }
    const int64_t first = (lanes ? lanes[i] : lane) * size;
    for (int64_t step = 0, slot = slots[i]; step < steps; step++) {
      const char *record = table.record(first + slot);
      for (int64_t c = 0; c < kept.count; c++) {
        copy_value(out[c], record + kept.columns[c].start, kept.columns[c].bytes);
        out[c] += kept.columns[c].bytes;
      }
      if (++slot == size) slot = 0;
    }
  }
  return true;
}

// The sum of a lane's weights before a slot.
uint64_t sum_before(const Table &table, int64_t lane, int64_t slot) {
  Levels levels(table.header.weights);
  uint64_t sum = 0;
  for (int64_t level = 0; level <= levels.count; level++, slot /= FANOUT) {
    const uint64_t *values =
        level ? table.sums(lane) + levels.start[level - 1] : table.weights(lane);
    sum = std::accumulate(values + slot / FANOUT * FANOUT, values + slot, sum);
  }
  return sum;
}

// The weights of a lane but for its newest records.
class Older {
 public:
  Older(const Table &table, int64_t lane, int64_t newest) {
    const uint64_t *weights = table.weights(lane);
    auto sum = [&](int64_t first, int64_t end) {
      return std::accumulate(weights + first, weights + end, uint64_t(0));
    };
    const int64_t size = table.header.capacity;
    int64_t end = next_slot(table, lane), first = std::max(end - newest, int64_t(0));
    int64_t last = end - first;  // the others are at the ring's end, behind all of these
    hidden_ = sum(first, end);
    total = table.lane(lane).total - hidden_ - sum(size - newest + last, size);
    from_ = newest ? sum_before(table, lane, first) : 0;
  }
  // A place among all weights, of one among these.
  uint64_t among_all(uint64_t place) const { return place < from_ ? place : place + hidden_; }

  uint64_t total;

 private:
  uint64_t from_, hidden_;
};

// The largest weight of a lane, for new records, that they are drawn soon.
uint64_t largest_of(const Table &table, int64_t lane) {
  Levels levels(table.header.weights);
  int64_t top = levels.count - 1;
  uint64_t found =
      largest(top < 0 ? table.weights(lane) : table.maxima(lane) + levels.start[top]);
  return found ? found : ONE;
}

// The next records of a lane are there. Their weights are set before.
void count_inserts(const Table &table, int64_t lane, int64_t records) {
  Lane &its = table.lane(lane);
  its.begun = its.committed += uint64_t(records);
  count_filled(table, lane);
}
}  // namespace

extern "C" {
bool kept_gather(const Kept *kept, int64_t count, const char *slots, const char *lanes,
                 int64_t steps, const char *to) {
  return gather(*kept, count, kept->data<int64_t>(slots), kept->data<int64_t>(lanes), steps, to);
}

// Draws `each` windows of every lane, all of them alike, `turns` times; steps of 0: single records.
// False if a lane has no window.
bool kept_draw(const Kept *kept, int64_t turns, int64_t each, const char *noise, int64_t steps,
               const char *to) {
  const Table table = kept->table();
  const int64_t lanes = table.header.lanes, size = table.header.capacity;
  const int64_t window = std::max(steps, int64_t(1));
  const float *numbers = kept->data<float>(noise);
  std::vector<int64_t> slots(turns * each * lanes);
  for (int64_t lane = 0; lane < lanes; lane++) {
    int64_t there = filled(table, lane), starts = there - window + 1;
    int64_t oldest = steps ? (inserted(table, lane) - there) % size : 0;
    if (starts < 1) return false;
    for (int64_t turn = 0; turn < turns; turn++) {
      const float *number = numbers + (turn * lanes + lane) * 2 * each;
      int64_t *found = slots.data() + turn * each * lanes + lane;
      for (int64_t i = 0; i < each; i++) {
        int64_t slot = oldest + below(number + i, each, double(starts));
        found[i * lanes] = slot < size ? slot : slot - size;
      }
    }
  }
  return gather(*kept, int64_t(slots.size()), slots.data(), nullptr, window, to);
}

// Draws by weight; also the slots, and how much likelier each was than in a draw of all alike.
bool kept_draw_weighted(const Kept *kept, int64_t each, const char *noise, int64_t steps,
                        const char *to, const char *drawn, const char *odds) {
  const Table table = kept->table();
  const int64_t lanes = table.header.lanes, window = std::max(steps, int64_t(1));
  const float *numbers = kept->data<float>(noise);
  Lanes all(kept->base, nullptr, 0);
  std::vector<int64_t> slots(each * lanes);
  for (int64_t lane = 0; lane < lanes; lane++, numbers += 2 * each) {
    int64_t starts = filled(table, lane) - window + 1;
    if (starts < 1) return false;
    const Older older(table, lane, window - 1);
    const double ratio = double(starts) / double(older.total);
    int32_t same[GROUP];
    std::fill(same, same + GROUP, int32_t(lane));
    for (int64_t start = 0; start < each; start += GROUP) {
      int64_t size = std::min(GROUP, each - start), found[GROUP];
      uint64_t places[GROUP];
      for (int64_t i = 0; i < size; i++)
        places[i] = older.among_all(
            uint64_t(below(numbers + start + i, each, double(older.total))));
      find(all, size, same, places, found);
      for (int64_t i = 0; i < size; i++) {
        int64_t row = (start + i) * lanes + lane;
        slots[row] = found[i];
        if (found[i] < 0) return false;
        kept->data<int32_t>(drawn)[row] = int32_t(found[i]);
        kept->data<float>(odds)[row] = float(double(table.weights(lane)[found[i]]) * ratio);
      }
    }
  }
  return gather(*kept, int64_t(slots.size()), slots.data(), nullptr, window, to);
}

// Writes some records of each of some lanes, the lanes in turn.
void kept_write(const Kept *kept, int64_t first, int64_t step, int64_t lanes, int64_t records,
                const char *from) {
  const Table table = kept->table();
  std::vector<char *> values = kept->all(from);
  std::vector<int64_t> slots(lanes);
  for (int64_t i = 0, lane = first; i < lanes; i++, lane += step) {
    slots[i] = next_slot(table, lane);
    if (table.header.weighted) {
      uint64_t weight = largest_of(table, lane);
      for (int64_t row = 0; row < records; row++)
        set_weight(table, lane, (slots[i] + row) % table.header.capacity, weight);
    }
    count_inserts(table, lane, records);
  }
  for (int64_t row = 0; row < records; row++)
    for (int64_t i = 0, lane = first; i < lanes; i++, lane += step) {
      char *record = table.record(lane * table.header.capacity + slots[i]);
      for (int64_t c = 0; c < kept->count; c++) {
        copy_value(record + kept->columns[c].start, values[c], kept->columns[c].bytes);
        values[c] += kept->columns[c].bytes;
      }
      if (++slots[i] == table.header.capacity) slots[i] = 0;
    }
}

// New weights of records, the lanes in turn; of several for a record the last one counts. False, and
// nothing has changed, if there is no such slot or a priority is none.
bool kept_update(const Kept *kept, int64_t count, const char *rows, const char *priorities) {
  const Table table = kept->table();
  const int32_t *slots = kept->data<int32_t>(rows);
  const double *values = kept->data<double>(priorities);
  for (int64_t i = 0; i < count; i++) {
    bool there = slots[i] >= 0 && slots[i] < table.header.capacity;
    if (!there || !(values[i] >= 0)) return false;
  }
  for (int64_t i = 0, lane = 0; i < count; i++, lane = lane + 1 == table.header.lanes ? 0 : lane + 1)
    set_weight(table, lane, slots[i], weight_of(values[i], 1.0));
  return true;
}

// Counts of inserts, records and weights that were written otherwise.
void kept_restore(const Kept *kept, const int64_t *counts) {
  const Table table = kept->table();
  for (int64_t lane = 0; lane < table.header.lanes; lane++) {
    table.lane(lane).begun = table.lane(lane).committed = uint64_t(counts[lane]);
    rebuild(table, lane);
  }
}
}
