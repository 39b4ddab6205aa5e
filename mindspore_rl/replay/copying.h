// How values of records are copied, and how the system is asked for them first.
#pragma once
#include <algorithm>
#include <cstdint>
#include <cstring>

#include <sys/mman.h>
#include <unistd.h>

namespace {
template <int BYTES> void copy_bytes(char *to, const char *from) { memcpy(to, from, BYTES); }

// Most values of records are smaller than what a call of memcpy pays for.
inline void copy_value(char *to, const char *from, int64_t bytes) {
  switch (bytes) {
    case 1: return copy_bytes<1>(to, from);
    case 4: return copy_bytes<4>(to, from);
    case 8: return copy_bytes<8>(to, from);
  }
  if (bytes < 16 || bytes > 256) {
    memcpy(to, from, bytes);
    return;
  }
  for (int64_t at = 0; at + 16 < bytes; at += 16) copy_bytes<16>(to + at, from + at);
  copy_bytes<16>(to + bytes - 16, from + bytes - 16);
}

// Has the system read parts of a mapped file all at once, instead of page by page as they are used.
class Announced {
 public:
  Announced() = default;
  Announced(const Announced &) = delete;
  ~Announced() { ask(); }

  void add(const char *data, int64_t bytes) {
    intptr_t from = intptr_t(data) / page_ * page_;
    intptr_t to = (intptr_t(data) + bytes + page_ - 1) / page_ * page_;
    if (from > end_ || from < begin_) {
      ask();
      begin_ = from;
      end_ = to;
    }
    end_ = std::max(end_, to);
  }

 private:
  void ask() {
    if (end_ > begin_) madvise((void *)begin_, end_ - begin_, MADV_WILLNEED);
  }

  const intptr_t page_ = sysconf(_SC_PAGESIZE);
  intptr_t begin_ = 0, end_ = 0;  // of what was not asked for yet
};
}  // namespace
