// Shadow memory and race detector of the emulator. Faults: out-of-bounds and misaligned accesses,
// reads of uninitialised shared memory, and data races: two accesses to a byte, one of them a
// write, that no barrier orders.
#pragma once
#include <algorithm>
#include <memory>

#include "fibers.h"

namespace host {

// Who accessed and when: block index + 1 (0 is nobody), thread, the block's barriers so far, and
// the thread's vector-clock time.
struct Access {
  unsigned block = 0, thread = 0, epoch = 0, time = 0;
  bool by(const Access& other) const { return block == other.block && thread == other.thread; }
};

struct Shadow {
  Access write, read, other_read;
  bool atomically = false;  // whether `write` was atomic
};

constexpr size_t PAGE = 256;

// Shadow cells of a page are as large as the smallest access to it.
struct Page {
  unsigned shift = 0;  // log2 of a cell's bytes
  std::unique_ptr<Shadow[]> cells;

  // Splits cells to 2^smaller bytes; the parts inherit a cell's history.
  void divide(unsigned smaller) {
    auto parts = std::make_unique<Shadow[]>(PAGE >> smaller);
    if (cells)
      for (size_t i = 0; i < PAGE >> smaller; ++i) parts[i] = cells[i << smaller >> shift];
    cells = std::move(parts);
    shift = smaller;
  }
};

struct Memory {
  char *begin, *end;
  bool shared, lasting = false;  // lasting: no kernel writes it
  std::vector<Page> pages;

  Memory(char* begin, size_t size, bool shared)
      : begin(begin), end(begin + size), shared(shared), pages((size + PAGE - 1) / PAGE) {}
};

inline std::vector<Memory> memories;  // of this launch, sorted by address
inline size_t last_used;
inline bool running;

inline Access now() { return {block_number + 1, current, block_epoch, fibers[current].time}; }

// Whether `before` happens before the current access, so that they do not race. Shared memory is a
// block's own: accesses of earlier blocks to it do not count.
inline bool ordered(const Access& before, const Access& own, bool shared) {
  if (!before.block || before.by(own)) return true;
  if (before.block != own.block) return shared;
  if (before.epoch != own.epoch) return true;
  return before.thread / WARP == current / WARP &&
         fibers[current].seen[before.thread % WARP] > before.time;
}

inline Memory* memory_of(const char* address) {
  if (last_used < memories.size() && address >= memories[last_used].begin &&
      address < memories[last_used].end)
    return &memories[last_used];
  const auto behind = std::upper_bound(
      memories.begin(), memories.end(), address,
      [](const char* at, const Memory& memory) { return at < memory.begin; });
  if (behind == memories.begin() || address >= behind[-1].end) return nullptr;
  last_used = behind - 1 - memories.begin();
  return &*(behind - 1);
}

// Source location of an access: a return address, or a line.
struct Place {
  const void* address = nullptr;
  Site site = {};
};

inline void look_at(const void* where, size_t size, bool writes, bool atomically, Place place) {
  if (!running || failed) return;
  const char* const address = static_cast<const char*>(where);
  const char* const stack = fibers[current].stack;
  if (address >= stack && address + size <= stack + STACK) return;

  const auto wrong = [&](const char* what, unsigned other = 0) {
    char at[100], said[100];
    if (place.address)
      snprintf(at, sizeof(at), " at %p", place.address);
    else
      snprintf(at, sizeof(at), " (%s:%d)", place.site.file, place.site.line);
    snprintf(said, sizeof(said), what, other);
    fail("%s %zu bytes %s%s", writes ? "writes" : "reads", size, said, at);
    to_scheduler();
  };
  Memory* const memory = memory_of(address);
  if (!memory || address + size > memory->end) wrong("outside of every buffer");
  if (reinterpret_cast<uintptr_t>(address) & (size - 1))
    wrong("at an address that is no multiple of it");

  const bool shared = memory->shared;
  if (!shared && early && !fibers[current].waited && (writes || !memory->lasting))
    wrong("before it has waited for the kernel before it");
  const Access own = now();
  const size_t at = address - memory->begin;
  Page& page = memory->pages[at / PAGE];  // aligned accesses do not cross pages
  const unsigned most = __builtin_ctzl(size);
  if (!page.cells || page.shift > most) page.divide(most);
  Shadow* const first = &page.cells[at % PAGE >> page.shift];
  for (size_t i = 0; i < size >> page.shift; ++i) {
    Shadow& shadow = first[i];
    const bool both = atomically && shadow.atomically;
    if (!both && !ordered(shadow.write, own, shared))
      wrong(shared ? "of shared memory that thread %u wrote, with no barrier between"
                   : "that thread %u wrote, with no barrier between",
            shadow.write.thread);
    if (shared && shadow.write.block != own.block && (!writes || atomically))
      wrong("of shared memory that nobody has written");
    if (!writes) {
      if (!shadow.read.by(own)) shadow.other_read = shadow.read;
      shadow.read = own;
      continue;
    }
    for (const Access& read : {shadow.read, shadow.other_read})
      if (!ordered(read, own, shared))
        wrong(shared ? "of shared memory that thread %u read, with no barrier between"
                     : "that thread %u read, with no barrier between",
              read.thread);
    shadow.write = own;
    shadow.atomically = atomically;
  }
}

}  // namespace host
