// A thread block's threads as fibers, which switch at barriers and warp-level operations.
#pragma once
#include <csetjmp>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <ucontext.h>
#include <vector>

#include "host.h"

namespace host {

constexpr size_t STACK = 128 << 10;
constexpr unsigned WARP = 32;

enum Waiting { NOT, FOR_BLOCK, FOR_WARP, GONE };

struct Fiber {
  ucontext_t first;  // for the first entry
  jmp_buf rest;
  char* stack = nullptr;
  bool begun = false, waited = false;
  Waiting waiting = NOT;
  Site site = {};
  uint32_t lanes = 0;
  uint64_t left = 0, found[WARP] = {};  // in a warp operation: own value, and all lanes'
  bool joins = false;                   // whether it is also a memory barrier
  unsigned time = 0, seen[WARP] = {};   // vector clock of warp barriers: own, and known by lane
};

struct Launch {
  void (*kernel)(void**);
  void** parameters;
  dim3 grid, block;
};

inline Launch launch;
inline bool early;
inline std::vector<const char*> lasting;  // addresses of buffers that no kernel writes
inline std::vector<Fiber> fibers;
inline jmp_buf scheduler;
inline unsigned current, block_epoch;
inline dim3 block_at;
inline unsigned block_number;  // block_at, flattened
inline char* fault;
inline size_t fault_size;
inline bool failed;

[[noreturn]] inline void to_scheduler() { longjmp(scheduler, 1); }

// Records the first fault of a launch; later ones follow from it.
__attribute__((format(printf, 1, 2))) inline void fail(const char* format, ...) {
  if (failed) return;
  failed = true;
  va_list words;
  va_start(words, format);
  const int begun = snprintf(fault, fault_size, "block %u,%u,%u thread %u: ", block_at.x,
                             block_at.y, block_at.z, current);
  vsnprintf(fault + begun, fault_size - begun, format, words);
  va_end(words);
}

inline void entry() {
  launch.kernel(launch.parameters);
  fibers[current].waiting = GONE;
  to_scheduler();
}

// Suspends the current fiber until the scheduler releases it.
inline void wait(Waiting waiting, Site site) {
  Fiber& fiber = fibers[current];
  fiber.waiting = waiting;
  fiber.site = site;
  if (!_setjmp(fiber.rest)) to_scheduler();
}

inline void resume(unsigned i) {
  current = i;
  Fiber& fiber = fibers[i];
  if (_setjmp(scheduler)) return;
  if (fiber.begun) longjmp(fiber.rest, 1);
  fiber.begun = true;
  getcontext(&fiber.first);
  fiber.first.uc_stack.ss_sp = fiber.stack;
  fiber.first.uc_stack.ss_size = STACK;
  fiber.first.uc_link = nullptr;
  makecontext(&fiber.first, entry, 0);
  setcontext(&fiber.first);
}

// Releases a block's barrier once all threads have arrived; reports barrier divergence.
inline bool release_block() {
  unsigned waiting = 0, gone = 0;
  const Fiber* first = nullptr;
  for (const Fiber& fiber : fibers) {
    gone += fiber.waiting == GONE;
    if (fiber.waiting != FOR_BLOCK) continue;
    ++waiting;
    if (!first) first = &fiber;
    if (fiber.site != first->site) {
      fail("threads wait at different barriers, %s:%d and %s:%d", first->site.file,
           first->site.line, fiber.site.file, fiber.site.line);
      return false;
    }
  }
  if (!waiting || waiting + gone < fibers.size()) return false;
  if (gone) {
    fail("%u of %zu threads are gone and never reach the barrier (%s:%d)", gone, fibers.size(),
         first->site.file, first->site.line);
    return false;
  }
  for (Fiber& fiber : fibers) fiber.waiting = NOT;
  ++block_epoch;
  return true;
}

// Exchanges the values of lanes that wait together, merges their clocks, and releases them.
inline void meet(Fiber* warp, uint32_t lanes) {
  uint64_t left[WARP] = {};
  unsigned seen[WARP] = {};
  for (unsigned lane = 0; lane < WARP; ++lane) {
    if (!(lanes >> lane & 1)) continue;
    Fiber& fiber = warp[lane];
    left[lane] = fiber.left;
    if (fiber.joins) fiber.seen[lane] = ++fiber.time;
    for (unsigned i = 0; i < WARP; ++i)
      if (seen[i] < fiber.seen[i]) seen[i] = fiber.seen[i];
  }
  for (unsigned lane = 0; lane < WARP; ++lane) {
    if (!(lanes >> lane & 1)) continue;
    Fiber& fiber = warp[lane];
    memcpy(fiber.found, left, sizeof(left));
    if (fiber.joins) memcpy(fiber.seen, seen, sizeof(seen));
    fiber.waiting = NOT;
  }
}

// Releases lanes whose whole mask waits at the same operation; `warp` is the first thread.
inline bool release_warp(Fiber* warp) {
  bool released = false;
  for (unsigned i = 0; i < WARP; ++i) {
    const Fiber& fiber = warp[i];
    if (fiber.waiting != FOR_WARP) continue;
    bool all = true;
    for (unsigned lane = 0; lane < WARP; ++lane) {
      const Fiber& other = warp[lane];
      if (fiber.lanes >> lane & 1)
        all &= other.waiting == FOR_WARP && other.site == fiber.site && other.lanes == fiber.lanes;
    }
    if (!all) continue;
    meet(warp, fiber.lanes);
    released = true;
  }
  return released;
}

inline void run_block(bool backwards) {
  const unsigned n = fibers.size();
  block_epoch = 0;
  for (Fiber& fiber : fibers) {
    fiber.begun = fiber.waited = false;
    fiber.waiting = NOT;
    fiber.time = 0;
    memset(fiber.seen, 0, sizeof(fiber.seen));
  }
  for (;;) {
    bool ran = false;
    for (unsigned k = 0; k < n && !failed; ++k) {
      const unsigned i = backwards ? n - 1 - k : k;
      if (fibers[i].waiting != NOT) continue;
      resume(i);
      ran = true;
    }
    if (failed) return;
    bool released = false, live = false;
    for (unsigned begin = 0; begin < n; begin += WARP) released |= release_warp(&fibers[begin]);
    if (!released) released = release_block();
    if (failed) return;
    for (const Fiber& fiber : fibers) live |= fiber.waiting != GONE;
    if (!live) return;
    if (!ran && !released) {
      for (unsigned i = 0; i < n; ++i)
        if (fibers[i].waiting == FOR_WARP) current = i;
      const Site& site = fibers[current].site;
      fail("waits for lanes of its warp that never come there (%s:%d)", site.file, site.line);
      return;
    }
  }
}

inline void set_threads(unsigned threads) {
  for (size_t i = threads; i < fibers.size(); ++i) free(fibers[i].stack);
  const size_t before = fibers.size();
  fibers.resize(threads);
  for (size_t i = before; i < threads; ++i)
    fibers[i].stack = static_cast<char*>(aligned_alloc(4096, STACK));
}

}  // namespace host
