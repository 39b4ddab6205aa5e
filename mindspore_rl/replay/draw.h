// Draws of lanes and of places in them.
#pragma once
#include <algorithm>
#include <cstdint>
#include <vector>

namespace {
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

constexpr int64_t FEW = 16;  // of so few lanes all are compared, without a branch to guess
}  // namespace

extern "C" {
// Draws of lanes and of places in them, from the lanes' totals alone: the same on every rank.
// mode 0: with replacement; 1: without; 2: of the lane that is given for each. How many random
// numbers it took, or -1 if there is nothing to draw, for mode 1 less than asked for.
int64_t table_draw(uint32_t seed, uint32_t stream, uint32_t step, uint32_t first, int64_t mode,
                   int64_t count, int64_t lanes, const uint64_t *totals, int32_t *lane,
                   uint64_t *offset) {
  std::vector<uint64_t> ends(lanes), taken;
  uint64_t total = 0;
  for (int64_t i = 0; i < lanes; i++) ends[i] = total += totals[i];
  for (int64_t i = 0; i < count && mode == 2; i++)
    if (!totals[lane[i]]) return -1;
  if (!total || (mode == 1 && total < uint64_t(count))) return -1;
  uint64_t mask = 0;
  if (mode == 1) {
    for (mask = 1; mask < uint64_t(2 * count); mask *= 2) {}
    taken.assign(mask--, UINT64_MAX);
  }
  // All at once, several in one instruction; without replacement it is not known how many.
  if (mode != 1)
    for (int64_t i = 0; i < count; i++)
      offset[i] = random_bits(seed, stream, step, first + uint32_t(i));
  uint32_t index = first;
  for (int64_t i = 0; i < count; i++, index++) {
    uint64_t bits = mode == 1 ? random_bits(seed, stream, step, index) : offset[i];
    if (mode == 2) {
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
    int64_t found = 0;
    if (lanes <= FEW)
      for (int64_t one = 0; one < lanes; one++) found += ends[one] <= at;
    else
      found = std::upper_bound(ends.begin(), ends.end(), at) - ends.begin();
    lane[i] = int32_t(found);
    offset[i] = at - (found ? ends[found - 1] : 0);
  }
  return int64_t(index - first);
}
}
