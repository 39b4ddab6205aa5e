// Frames of kept records, see frames.py. One thread writes.
#include "copying.h"

#include <initializer_list>

namespace {
// Numbers of the frames of each record, as frames.py lays them out.
struct Index {
  char *base;
  int64_t slot, lane;  // how far apart they are
  int64_t frames, capacity;

  int32_t *at(int64_t s, int64_t l) const { return (int32_t *)(base + s * slot + l * lane); }
};
struct Store {
  int64_t bytes, shift, count;  // of a frame; of frames in a block (log2); of columns
  int64_t announces;  // whether frames are in files that do not fit memory
  uint64_t *hashes;
  int32_t *uses, *free;
  int64_t *counts;  // numbers that are or were in use, and those free again
  char **blocks;
  Index columns[];

  char *frame(int32_t number) const {
    return blocks[number >> shift] + (number & ((1 << shift) - 1)) * bytes;
  }
  int32_t next() const { return counts[1] ? free[--counts[1]] : int32_t(counts[0]++); }
  void release(int32_t number) const {
    if (number && !--uses[number]) free[counts[1]++] = number;
  }
};

uint64_t mixed(uint64_t hash, uint64_t word) {
  hash = (hash ^ word) * 0x9e3779b97f4a7c15;
  return hash ^ hash >> 29;
}

uint64_t hash_of(const char *data, int64_t bytes) {
  uint64_t hash[4] = {1, 2, 3, 4}, words[4];
  int64_t at = 0;
  for (; at + 32 <= bytes; at += 32) {
    memcpy(words, data + at, 32);
    for (int i = 0; i < 4; i++) hash[i] = mixed(hash[i], words[i]);
  }
  memset(words, 0, 32);
  memcpy(words, data + at, bytes - at);
  for (int i = 0; i < 4; i++) hash[0] = mixed(hash[0], mixed(hash[i], words[i]));
  return hash[0];
}

// The number of a frame that this record or one beside it holds; 0 if none does.
int32_t known(const Store &store, const char *data, uint64_t hash, const Index &own, int64_t slot,
              int64_t lane) {
  int64_t before = slot ? slot - 1 : own.capacity - 1;
  int64_t after = slot + 1 == own.capacity ? 0 : slot + 1;
  for (int64_t s : {before, slot, after})
    for (int64_t c = 0; c < store.count; c++) {
      const int32_t *held = store.columns[c].at(s, lane);
      for (int64_t i = 0; i < store.columns[c].frames; i++)
        if (held[i] && store.hashes[held[i]] == hash &&
            !memcmp(store.frame(held[i]), data, store.bytes))
          return held[i];
    }
  return 0;
}
}  // namespace

extern "C" {
// Writes records of a column. There is room for all their frames.
void frames_put(const Store *store, int64_t column, int64_t count, const int64_t *slots,
                const int64_t *lanes, const char *from) {
  const Index &own = store->columns[column];
  for (int64_t n = 0; n < count; n++) {
    int32_t *numbers = own.at(slots[n], lanes[n]);
    for (int64_t i = 0; i < own.frames; i++) {
      store->release(numbers[i]);
      numbers[i] = 0;
    }
    for (int64_t i = 0; i < own.frames; i++, from += store->bytes) {
      uint64_t hash = hash_of(from, store->bytes);
      int32_t number = known(*store, from, hash, own, slots[n], lanes[n]);
      if (!number) {
        number = store->next();
        memcpy(store->frame(number), from, store->bytes);
        store->hashes[number] = hash;
      }
      store->uses[number]++;
      numbers[i] = number;
    }
  }
}

void frames_take(const Store *store, int64_t count, const int32_t *numbers, char *to) {
  if (store->announces) {
    Announced announced;
    for (int64_t n = 0; n < count; n++) announced.add(store->frame(numbers[n]), store->bytes);
  }
  for (int64_t n = 0; n < count; n++, to += store->bytes)
    memcpy(to, store->frame(numbers[n]), store->bytes);
}
}
