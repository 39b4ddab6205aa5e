// What a batch of records is copied to.
#pragma once
#include "copying.h"
#include "index.h"

#ifdef __SSE2__
#include <emmintrin.h>
#endif

namespace {
// Copies what it is told, if a record is still the one of an id then.
template <class Copy> bool read(const Lanes &lanes, int64_t id, Copy copy) {
  if (id < 0) return false;
  auto [table, record, generation] = lanes.record(id);
  if (table.generation(record) != generation) return false;
  copy(table, record);
  std::atomic_thread_fence(std::memory_order_acquire);
  return table.generation(record) == generation;
}

// Beyond this a batch does not stay in a cache: it is written past them, which saves reading first
// what is overwritten.
constexpr int64_t STREAMED = 1 << 24;
constexpr int64_t AHEAD = 4096;
// From so many bytes on a batch is copied in parts, on what threads there are.
constexpr int64_t SPLIT = 1 << 21, PARTS = 16;

void copy_past_caches(char *to, const char *from, int64_t size) {
#ifdef __SSE2__
  int64_t head = std::min(-intptr_t(to) & 63, size), at = head;
  memcpy(to, from, head);
  for (; at + 64 <= size; at += 64) {
    __builtin_prefetch(from + at + AHEAD, 0, 2);
    for (int64_t part = at; part < at + 64; part += 16)
      _mm_stream_si128(reinterpret_cast<__m128i *>(to + part),
                       _mm_loadu_si128(reinterpret_cast<const __m128i *>(from + part)));
  }
  memcpy(to + at, from + at, size - at);
#else
  memcpy(to, from, size);
#endif
}

// What was written so is there before anything that is written later.
void end_of_stream() {
#ifdef __SSE2__
  _mm_sfence();
#endif
}

// Has small records in the cache that will be copied.
void fetch(const Lanes &lanes, int64_t count, const int64_t *ids) {
  const int64_t size = lanes.header.record_bytes;
  for (int64_t i = 0; i < count && size <= 1024; i++) {
    if (ids[i] < 0) continue;
    auto [table, record, generation] = lanes.record(ids[i]);
    touch(table.record(record));
    touch(table.record(record) + size - 1);
    if (!table.sequential()) touch(&table.entry(record));
  }
}

// Whether a transition is the one some commits after another, of the same writer; a sequential table
// does not know its writers.
bool follows(const Table &table, int64_t record, int64_t before, int64_t commits) {
  uint32_t generation = table.generation(record);
  bool right = table.order(record) == table.order(before) + uint64_t(commits);
  if (!table.sequential())
    right &= table.entry(record).session == table.entry(before).session;
  std::atomic_thread_fence(std::memory_order_acquire);
  return right && generation % 2 == 0 && table.generation(record) == generation;
}
}  // namespace

extern "C" {
// Copies steps of records to rows of column after column; what lies behind a record's end is 0.
// `whole` is 0 where the record has been overwritten. `in_parts`: of ../codegen/threads.cpp, or null.
void table_gather(char *base, const Place *places, int64_t all_lanes, int64_t count,
                  const int64_t *ids, const int32_t *first, int64_t window, int64_t columns,
                  const int64_t *starts, const int64_t *step_bytes, char *const *to,
                  uint8_t *whole, int (*in_parts)(void (*)(void *, int64_t), void *, int64_t)) {
  Lanes lanes(base, places, all_lanes);
  int64_t bytes = 0;
  for (int64_t c = 0; c < columns; c++) bytes += count * window * step_bytes[c];
  bool streamed = bytes > STREAMED;
  int64_t parts = in_parts && bytes >= SPLIT ? std::min(count, PARTS) : 1;
  auto copy_part = [&](int64_t part) {
    const int64_t begin = count * part / parts, end = count * (part + 1) / parts;
    for (int64_t i = begin; i < end; i++) {
      if ((i - begin) % GROUP == 0) fetch(lanes, std::min(GROUP, end - i), ids + i);
      whole[i] = read(lanes, ids[i], [&](const Table &table, int64_t record) {
        int64_t start = first ? first[i] : 0;
        int64_t steps = table.length(record) - start;
        int64_t length = std::min(window, std::max(steps, int64_t(0)));
        for (int64_t c = 0; c < columns; c++) {
          char *row = to[c] + i * window * step_bytes[c];
          const char *from = table.record(record) + starts[c] + start * step_bytes[c];
          if (streamed)
            copy_past_caches(row, from, length * step_bytes[c]);
          else
            copy_value(row, from, length * step_bytes[c]);
          if (length < window)
            memset(row + length * step_bytes[c], 0, (window - length) * step_bytes[c]);
        }
      });
    }
    if (streamed) end_of_stream();
  };
  if (parts == 1) return copy_part(0);
  in_parts([](void *context, int64_t part) { (*(decltype(copy_part) *)context)(part); },
           &copy_part, parts);
}

// Has the system read what a gather of the same arguments will copy, of a file that is mapped.
void table_will_need(char *base, int64_t count, const int64_t *ids, const int32_t *first,
                     int64_t window, int64_t columns, const int64_t *starts,
                     const int64_t *step_bytes) {
  Lanes lanes(base, nullptr, 0);
  Announced announced;
  for (int64_t i = 0; i < count; i++) {
    auto [table, record, generation] = lanes.record(ids[i]);
    int64_t steps = std::min(window, table.length(record) - first[i]);
    for (int64_t c = 0; c < columns && steps > 0; c++)
      announced.add(table.record(record) + starts[c] + first[i] * step_bytes[c],
                    steps * step_bytes[c]);
  }
}

// Copies transitions, each with the discounted sum of `n` rewards from it on in place of its
// reward, and with the columns that are `late` from the last of those steps; fewer steps at an
// episode's end and behind the newest record. The ring overwrites the first of them first, so if
// that is whole all are.
void table_n_step(char *base, int64_t count, const int64_t *ids, int64_t n, double gamma,
                  int64_t stride, int64_t reward, int64_t ends, const int64_t *end_starts,
                  const uint8_t *late, int64_t columns, const int64_t *starts,
                  const int64_t *step_bytes, char *const *to, int32_t *steps, uint8_t *whole) {
  Lanes lanes(base, nullptr, 0);
  int64_t capacity = lanes.header.capacity;
  for (int64_t i = 0; i < count; i++) {
    if (i % GROUP == 0) fetch(lanes, std::min(GROUP, count - i), ids + i);
    steps[i] = 0;
    whole[i] = read(lanes, ids[i], [&](const Table &table, int64_t record) {
      int64_t lane = record / capacity * capacity, last = record;
      double sum = 0, discount = 1;
      while (true) {
        float value;
        memcpy(&value, table.record(last) + starts[reward], sizeof value);
        sum += discount * value;
        discount *= gamma;
        steps[i]++;
        bool ended = steps[i] == n || steps[i] * stride >= capacity;
        for (int64_t end = 0; end < ends; end++) ended |= *(table.record(last) + end_starts[end]);
        int64_t next = lane + (record - lane + steps[i] * stride) % capacity;
        if (ended || !follows(table, next, record, steps[i] * stride)) break;
        last = next;
      }
      for (int64_t c = 0; c < columns; c++)
        copy_value(to[c] + i * step_bytes[c], table.record(late[c] ? last : record) + starts[c],
                   step_bytes[c]);
      float value = float(sum);
      memcpy(to[reward] + i * sizeof value, &value, sizeof value);
    });
  }
}
}
