// The records of a table in an order, the first of them without a look at all.
#pragma once
#include "index.h"

#include <queue>

namespace {
constexpr int64_t FIFO = 0, LIFO = 1, LARGEST_FIRST = 2;

// The first slot from `slot` on, in steps of 1 or -1, that can be drawn; -1: there is none.
int64_t nearest(const Table &table, int64_t lane, int64_t slot, int64_t step) {
  if (!table.header.weights) {
    const Filled filled(table, lane);
    if (step < 0) slot = std::min(slot, filled.slots - 1);
    if (slot == filled.open) slot += step;
    return slot < filled.slots ? slot : -1;
  }
  Levels levels(table.header.weights);
  int64_t level = 0, group = slot / FANOUT;
  while (true) {
    const uint64_t *values =
        level ? table.sums(lane) + levels.start[level - 1] : table.weights(lane);
    while (slot >= 0 && slot / FANOUT == group && !load(values[slot])) slot += step;
    if (slot >= 0 && slot / FANOUT == group) {
      if (!level) return slot;
      level--;
      group = slot;
      slot = slot * FANOUT + (step > 0 ? 0 : FANOUT - 1);
    } else {
      if (level == levels.count) return -1;
      level++;
      slot = group + step;
      group /= FANOUT;
    }
  }
}

// A record, or in a tree of maxima a node of some level.
struct Node {
  uint64_t key;
  int64_t lane, level, slot, span;  // span: records that it stands for
};
// Of equal keys, those of the first lane and of the first slots.
bool operator<(const Node &a, const Node &b) {
  if (a.key != b.key) return a.key < b.key;
  return a.lane != b.lane ? a.lane > b.lane : a.slot * a.span > b.slot * b.span;
}

class Walk {
 public:
  // The lanes' locks are held.
  Walk(const Table &table, int64_t order)
      : table_(table), order_(order), levels_(table.header.weights) {
    for (int64_t lane = 0; lane < table.header.lanes; lane++) {
      if (order == LARGEST_FIRST) {
        open(lane, levels_.count, 0, int64_t(1) << (4 * levels_.count));
      } else {
        follow(lane, 0);
      }
    }
  }

  // -1: there is no other. Its key: of the records that come first it is the largest.
  int64_t next(uint64_t *key = nullptr) {
    while (!nodes_.empty()) {
      Node node = nodes_.top();
      nodes_.pop();
      if (node.level) {
        open(node.lane, node.level - 1, node.slot, node.span / FANOUT);
        continue;
      }
      if (order_ != LARGEST_FIRST) follow(node.lane, walked(node.lane, node.slot) + 1);
      if (key) *key = node.key;
      return node.lane * table_.header.capacity + node.slot;
    }
    return -1;
  }

 private:
  // The children of a node that stand on some level.
  void open(int64_t lane, int64_t level, int64_t parent, int64_t span) {
    const uint64_t *values =
        level ? table_.maxima(lane) + levels_.start[level - 1] : table_.weights(lane);
    for (int64_t slot = parent * FANOUT; slot < (parent + 1) * FANOUT; slot++)
      if (values[slot]) nodes_.push({values[slot], lane, level, slot, span});
  }

  // The slot that is written next is the oldest.
  int64_t start(int64_t lane) const {
    int64_t size = table_.header.capacity;
    return int64_t((table_.lane(lane).begun + uint64_t(order_ == FIFO ? 0 : size - 1)) % size);
  }
  int64_t walked(int64_t lane, int64_t slot) const {
    int64_t size = table_.header.capacity, from = start(lane);
    return ((order_ == FIFO ? slot - from : from - slot) + size) % size;
  }
  // The first record of a lane behind those of its ring that were walked over.
  void follow(int64_t lane, int64_t passed) {
    int64_t size = table_.header.capacity, step = order_ == FIFO ? 1 : -1;
    if (passed == size) return;
    int64_t found = nearest(table_, lane, (start(lane) + step * passed + size) % size, step);
    if (found < 0) found = nearest(table_, lane, step > 0 ? 0 : size - 1, step);
    if (found < 0 || walked(lane, found) < passed) return;
    uint64_t order = table_.order(lane * size + found);
    nodes_.push({order_ == FIFO ? ~order : order, lane, 0, found, 1});
  }

  const Table &table_;
  int64_t order_;
  Levels levels_;
  std::priority_queue<Node> nodes_;
};
}  // namespace
