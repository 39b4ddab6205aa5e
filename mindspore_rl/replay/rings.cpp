// Kept records of a Python loop, see rings.py: columns of any strides, in which each lane is a ring,
// and for draws by priority a table's index of weights, without entries. One thread calls.
//
// Arrays come as Python objects, or tuples of them, and are looked up in these: NumPy takes longer to
// tell one address than it takes to copy ten records.
#include "copying.h"
#include "index.h"

namespace {
// As rings.py lays it out.
struct Column {
  char *base;
  int64_t slot, lane, bytes;  // how far apart slots and lanes are, and the size of a value
};
struct Rings {
  int64_t address, items;  // where they are in an array's object, and in a tuple
  int64_t capacity, lanes, count;
  int64_t *inserted;  // records of each lane, ever
  char *index;        // the table of their weights, or null
  int64_t on_disk;    // whether records are in a file that may not fit memory
  Column columns[];

  template <class T> T *data(const char *array) const { return *(T *const *)(array + address); }
  // The arrays of a tuple, one for each column.
  std::vector<char *> all(const char *tuple) const {
    std::vector<char *> found(count);
    for (int64_t c = 0; c < count; c++)
      found[c] = data<char>(((const char *const *)(tuple + items))[c]);
    return found;
  }
  int64_t filled(int64_t lane) const { return std::min(inserted[lane], capacity); }
};

// A random number below a count, see rl/random.py: of `each` numbers, behind which are as many
// whose bits are lower.
int64_t below(const float *number, int64_t each, double count) {
  return int64_t((double(number[0]) + double(number[each]) * 0x1p-24) * count);
}

// Has the system read what will be copied.
void announce(const Rings &rings, int64_t count, const int64_t *slots, const int64_t *lanes,
              int64_t steps) {
  Announced announced;
  for (int64_t i = 0; i < count; i++)
    for (int64_t c = 0; c < rings.count; c++)
      for (int64_t slot = slots[i], left = steps; left > 0; slot = 0) {
        const Column &column = rings.columns[c];
        int64_t run = std::min(left, rings.capacity - slot), lane = lanes ? lanes[i] : i % rings.lanes;
        const char *from = column.base + slot * column.slot + lane * column.lane;
        announced.add(from, (run - 1) * column.slot + column.bytes);
        left -= run;
      }
}

// Windows of records from slots on, of the given lanes or of all in turn. False if there is no such
// slot or lane.
bool gather(const Rings &rings, int64_t count, const int64_t *slots, const int64_t *lanes,
            int64_t steps, const char *to) {
  for (int64_t i = 0; i < count; i++)
    if (uint64_t(slots[i]) >= uint64_t(rings.capacity) ||
        (lanes && uint64_t(lanes[i]) >= uint64_t(rings.lanes)))
      return false;
  if (rings.on_disk) announce(rings, count, slots, lanes, steps);
  std::vector<char *> out = rings.all(to);
  int64_t lane = 0, ahead = 0, next = 0;
  auto after = [&](int64_t turn) { return turn + 1 == rings.lanes ? 0 : turn + 1; };
  for (int64_t i = 0; i < count; i++, lane = after(lane)) {
    // Not `touch`: the copies would wait for its loads, which take four times as long together.
    for (; next < std::min(i + GROUP, count); next++, ahead = after(ahead))
      for (int64_t c = 0; c < rings.count; c++) {
        const Column &column = rings.columns[c];
        __builtin_prefetch(column.base + slots[next] * column.slot +
              (lanes ? lanes[next] : ahead) * column.lane);
      }
    const int64_t own = lanes ? lanes[i] : lane;
    for (int64_t step = 0, slot = slots[i]; step < steps; step++) {
      for (int64_t c = 0; c < rings.count; c++) {
        const Column &column = rings.columns[c];
        copy_value(out[c], column.base + slot * column.slot + own * column.lane, column.bytes);
        out[c] += column.bytes;
      }
      if (++slot == rings.capacity) slot = 0;
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
  Older(const Rings &rings, int64_t lane, int64_t newest) {
    Table table(rings.index);
    const uint64_t *weights = table.weights(lane);
    auto sum = [&](int64_t first, int64_t end) {
      return std::accumulate(weights + first, weights + end, uint64_t(0));
    };
    int64_t end = rings.inserted[lane] % rings.capacity, first = std::max(end - newest, int64_t(0));
    int64_t last = end - first;  // the others are at the ring's end, behind all of these
    hidden_ = sum(first, end);
    total = table.lane(lane).total - hidden_ - sum(rings.capacity - newest + last, rings.capacity);
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
}  // namespace

extern "C" {
// The sums and maxima of weights that were written.
void rings_rebuild(const Rings *rings) {
  for (int64_t lane = 0; lane < rings->lanes; lane++) rebuild(Table(rings->index), lane);
}

bool rings_gather(const Rings *rings, int64_t count, const char *slots, const char *lanes,
                  int64_t steps, const char *to) {
  return gather(*rings, count, rings->data<int64_t>(slots), rings->data<int64_t>(lanes), steps, to);
}

// Draws `each` windows of every lane, all of them alike, `turns` times; steps of 0: single records.
// False if a lane has no window.
bool rings_draw(const Rings *rings, int64_t turns, int64_t each, const char *noise, int64_t steps,
                const char *to) {
  const int64_t lanes = rings->lanes, window = std::max(steps, int64_t(1));
  const float *numbers = rings->data<float>(noise);
  std::vector<int64_t> slots(turns * each * lanes);
  for (int64_t lane = 0; lane < lanes; lane++) {
    int64_t filled = rings->filled(lane), starts = filled - window + 1;
    int64_t oldest = steps ? (rings->inserted[lane] - filled) % rings->capacity : 0;
    if (starts < 1) return false;
    for (int64_t turn = 0; turn < turns; turn++) {
      const float *number = numbers + (turn * lanes + lane) * 2 * each;
      int64_t *found = slots.data() + turn * each * lanes + lane;
      for (int64_t i = 0; i < each; i++) {
        int64_t slot = oldest + below(number + i, each, double(starts));
        found[i * lanes] = slot < rings->capacity ? slot : slot - rings->capacity;
      }
    }
  }
  return gather(*rings, int64_t(slots.size()), slots.data(), nullptr, window, to);
}

// Draws by weight; also the slots, and how much likelier each was than in a draw of all alike.
bool rings_draw_weighted(const Rings *rings, int64_t each, const char *noise, int64_t steps,
                         const char *to, const char *drawn, const char *odds) {
  const int64_t lanes = rings->lanes, window = std::max(steps, int64_t(1));
  const float *numbers = rings->data<float>(noise);
  Table table(rings->index);
  Lanes all(rings->index, nullptr, 0);
  std::vector<int64_t> slots(each * lanes);
  for (int64_t lane = 0; lane < lanes; lane++, numbers += 2 * each) {
    int64_t starts = rings->filled(lane) - window + 1;
    if (starts < 1) return false;
    const Older older(*rings, lane, window - 1);
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
        rings->data<int32_t>(drawn)[row] = int32_t(found[i]);
        rings->data<float>(odds)[row] = float(double(table.weights(lane)[found[i]]) * ratio);
      }
    }
  }
  return gather(*rings, int64_t(slots.size()), slots.data(), nullptr, window, to);
}

// Gives the next records of some lanes their weights.
void rings_weigh(const Rings *rings, int64_t first, int64_t step, int64_t lanes, int64_t records) {
  Table table(rings->index);
  for (int64_t lane = first; lanes-- > 0; lane += step) {
    uint64_t weight = largest_of(table, lane);
    for (int64_t i = 0; i < records; i++)
      set_weight(table, lane, (rings->inserted[lane] + i) % rings->capacity, weight);
  }
}

// Writes some records of each of some lanes, the lanes in turn.
void rings_write(const Rings *rings, int64_t first, int64_t step, int64_t lanes, int64_t records,
                 const char *from) {
  std::vector<char *> values = rings->all(from);
  if (rings->index) rings_weigh(rings, first, step, lanes, records);
  std::vector<int64_t> slots(lanes);
  for (int64_t i = 0; i < lanes; i++) {
    int64_t &inserted = rings->inserted[first + i * step];
    slots[i] = inserted % rings->capacity;
    inserted += records;
  }
  for (int64_t turn = 0; turn < records; turn++)
    for (int64_t i = 0, lane = first; i < lanes; i++, lane += step) {
      for (int64_t c = 0; c < rings->count; c++) {
        const Column &column = rings->columns[c];
        char *to = column.base + slots[i] * column.slot + lane * column.lane;
        copy_value(to, values[c], column.bytes);
        values[c] += column.bytes;
      }
      if (++slots[i] == rings->capacity) slots[i] = 0;
    }
}

// New weights of records, the lanes in turn; of several for a record the last one counts. False, and
// nothing has changed, if there is no such slot or a priority is none.
bool rings_update(const Rings *rings, int64_t count, const char *rows, const char *priorities) {
  Table table(rings->index);
  const int32_t *slots = rings->data<int32_t>(rows);
  const double *values = rings->data<double>(priorities);
  for (int64_t i = 0; i < count; i++) {
    bool there = slots[i] >= 0 && slots[i] < rings->capacity;
    if (!there || !(values[i] >= 0)) return false;
  }
  for (int64_t i = 0, lane = 0; i < count; i++, lane = lane + 1 == rings->lanes ? 0 : lane + 1)
    set_weight(table, lane, slots[i], weight_of(values[i], 1.0));
  return true;
}
}
