// Runs a CUDA kernel block by block, a block's threads as fibers that change at barriers and warp
// operations, and looks at its accesses to memory: compiled with -fsanitize=thread, a kernel calls
// the functions at the end of this file before each.
//
// Found are: accesses outside of buffers, reads of shared memory that nobody wrote, two threads at
// one address with no barrier between and one of them writing, and barriers that not all threads
// reach. The first of these stops the launch.
#include <csetjmp>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <ucontext.h>
#include <vector>

#include "host.h"

namespace {

constexpr size_t STACK = 128 << 10;
constexpr unsigned WARP = 32;

enum Waiting { NOT, FOR_BLOCK, FOR_WARP, GONE };

struct Fiber {
  ucontext_t first;  // to begin with
  jmp_buf rest;
  char* stack = nullptr;
  bool begun = false;
  Waiting waiting = NOT;
  int line = 0;
  uint32_t lanes = 0;
  unsigned warp_epoch = 0, phase = 0;
  uint64_t left[2] = {};
};

// Who touched a byte: 0 is nobody, else the thread's number in the grid + 1.
struct Access {
  uint64_t thread = 0;
  unsigned block_epoch = 0, warp_epoch = 0;
};
struct Shadow {
  Access write, read, other_read;
};

struct Memory {
  char *begin, *end;
  bool shared;
  std::vector<Shadow> shadow;
  std::vector<bool> written;  // of shared memory
};

struct Launch {
  void (*kernel)(void**);
  void** parameters;
  dim3 grid, block;
};

Launch launch;
std::vector<Fiber> fibers;
std::vector<Memory> memories;  // of this launch
std::vector<char> dynamic;
jmp_buf scheduler;
ucontext_t scheduler_begin;
unsigned current, block_epoch;
dim3 block_at;
char* fault;
size_t fault_size;
bool failed, running;

unsigned threads() { return launch.block.x * launch.block.y * launch.block.z; }

dim3 unflatten(unsigned i, dim3 size) {
  return {i % size.x, i / size.x % size.y, i / size.x / size.y};
}

[[noreturn]] void to_scheduler() { longjmp(scheduler, 1); }

__attribute__((format(printf, 1, 2))) void fail(const char* format, ...) {
  if (failed) return;
  failed = true;
  va_list words;
  va_start(words, format);
  const int begun = snprintf(fault, fault_size, "block %u,%u,%u thread %u: ", block_at.x,
                             block_at.y, block_at.z, current);
  vsnprintf(fault + begun, fault_size - begun, format, words);
  va_end(words);
}

void entry() {
  launch.kernel(launch.parameters);
  fibers[current].waiting = GONE;
  to_scheduler();
}

// Let others run until this one's `waiting` ends.
void yield() {
  if (!_setjmp(fibers[current].rest)) to_scheduler();
}

void resume(unsigned i) {
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

// Whether those that wait may go on; says what is wrong where none ever can.
bool release_block() {
  unsigned waiting = 0, gone = 0;
  const Fiber* first = nullptr;
  for (const Fiber& fiber : fibers) {
    gone += fiber.waiting == GONE;
    if (fiber.waiting != FOR_BLOCK) continue;
    ++waiting;
    if (!first) first = &fiber;
    if (fiber.line != first->line) {
      fail("threads wait at different barriers, of lines %d and %d", first->line, fiber.line);
      return false;
    }
  }
  if (!waiting || waiting + gone < fibers.size()) return false;
  if (gone) {
    fail("%u of %zu threads are gone and never reach the barrier of line %d", gone, fibers.size(),
         first->line);
    return false;
  }
  for (Fiber& fiber : fibers) fiber.waiting = NOT;
  ++block_epoch;
  return true;
}

bool release_warp(unsigned begin) {
  const unsigned end = begin + WARP < fibers.size() ? begin + WARP : fibers.size();
  bool released = false;
  for (unsigned i = begin; i < end; ++i) {
    Fiber& fiber = fibers[i];
    if (fiber.waiting != FOR_WARP) continue;
    bool all = true;
    for (unsigned lane = 0; lane < WARP; ++lane) {
      if (!(fiber.lanes >> lane & 1)) continue;
      if (begin + lane >= end) {
        fail("line %d waits for lane %u, which the warp does not have", fiber.line, lane);
        return false;
      }
      const Fiber& other = fibers[begin + lane];
      all &= other.waiting == FOR_WARP && other.line == fiber.line && other.lanes == fiber.lanes;
    }
    if (!all) continue;
    const uint32_t lanes = fiber.lanes;
    for (unsigned lane = 0; lane < WARP; ++lane)
      if (lanes >> lane & 1) fibers[begin + lane].waiting = NOT;
    released = true;
  }
  return released;
}

void run_block(bool backwards) {
  const unsigned n = fibers.size();
  block_epoch = 0;
  for (Memory& memory : memories) {
    if (!memory.shared) continue;
    memset(memory.begin, 0xFF, memory.end - memory.begin);
    memory.shadow.assign(memory.end - memory.begin, {});
    memory.written.assign(memory.end - memory.begin, false);
  }
  for (Fiber& fiber : fibers) {
    fiber.begun = false;
    fiber.waiting = NOT;
    fiber.warp_epoch = fiber.phase = 0;
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
    for (unsigned begin = 0; begin < n; begin += WARP) released |= release_warp(begin);
    if (!failed && !released) released = release_block();
    if (failed) return;
    for (const Fiber& fiber : fibers) live |= fiber.waiting != GONE;
    if (!live) return;
    if (!ran && !released) {
      for (unsigned i = 0; i < n; ++i)
        if (fibers[i].waiting != GONE) current = i;
      const Fiber& stuck = fibers[current];
      fail("waits at line %d for lanes of its warp that never come there", stuck.line);
      return;
    }
  }
}

bool ordered(const Access& before, const Access& now, bool shared) {
  if (!before.thread || before.thread == now.thread) return true;
  const unsigned n = threads();
  const uint64_t one = before.thread - 1, other = now.thread - 1;
  if (!shared && one / n != other / n) return false;
  if (before.block_epoch != now.block_epoch) return true;
  return one / WARP == other / WARP && n % WARP == 0 && before.warp_epoch != now.warp_epoch;
}

unsigned number_of(const Access& access) { return (access.thread - 1) % threads(); }

Memory* memory_of(const char* address) {
  for (Memory& memory : memories)
    if (address >= memory.begin && address < memory.end) return &memory;
  return nullptr;
}

void look_at(const void* where, size_t size, bool writes, bool atomically, const void* site) {
  if (!running || failed) return;
  const char* address = static_cast<const char*>(where);
  const Fiber& fiber = fibers[current];
  if (address >= fiber.stack && address + size <= fiber.stack + STACK) return;
  Memory* memory = memory_of(address);
  const char* verb = writes ? "writes" : "reads";
  if (!memory || address + size > memory->end) {
    fail("%s %zu bytes outside of every buffer at %p", verb, size, site);
    to_scheduler();
  }
  const uint64_t block = block_at.x + launch.grid.x * (block_at.y + uint64_t{launch.grid.y} * block_at.z);
  const Access now = {block * threads() + current + 1, block_epoch, fiber.warp_epoch};
  const size_t begin = address - memory->begin;
  if (reinterpret_cast<uintptr_t>(address) % size) {
    fail("%s %zu bytes at an address that is no multiple of it at %p", verb, size, site);
    to_scheduler();
  }
  for (size_t i = begin; i < begin + size; ++i) {
    Shadow& shadow = memory->shadow[i];
    const bool atomic_before = shadow.write.thread >> 63;
    Access before = shadow.write;
    before.thread &= ~(uint64_t{1} << 63);
    const bool both = atomically && atomic_before;
    if (!both && !ordered(before, now, memory->shared)) {
      fail("%s what thread %u wrote, with no barrier between, in %s memory at %p", verb,
           number_of(before), memory->shared ? "shared" : "global", site);
      to_scheduler();
    }
    if (memory->shared && !writes && !memory->written[i]) {
      fail("reads shared memory that nobody has written at %p", site);
      to_scheduler();
    }
    if (!writes) {
      if (shadow.read.thread && shadow.read.thread != now.thread) shadow.other_read = shadow.read;
      shadow.read = now;
      continue;
    }
    for (const Access& read : {shadow.read, shadow.other_read})
      if (!ordered(read, now, memory->shared)) {
        fail("writes what thread %u read, with no barrier between, in %s memory at %p",
             number_of(read), memory->shared ? "shared" : "global", site);
        to_scheduler();
      }
    shadow.write = now;
    if (atomically) shadow.write.thread |= uint64_t{1} << 63;
    if (memory->shared) memory->written[i] = true;
  }
}

}  // namespace

namespace host {

dim3 thread_index() { return unflatten(current, launch.block); }
dim3 block_index() { return block_at; }
dim3 block_dim() { return launch.block; }
dim3 grid_dim() { return launch.grid; }
void* dynamic_shared() { return dynamic.data(); }
unsigned lane() { return current % WARP; }

void barrier(int line) {
  fibers[current].waiting = FOR_BLOCK;
  fibers[current].line = line;
  yield();
}

void leave(uint32_t lanes, uint64_t value, int line) {
  Fiber& fiber = fibers[current];
  if (!(lanes >> lane() & 1)) {
    fail("takes part in line %d, whose mask is without its lane", line);
    to_scheduler();
  }
  fiber.phase ^= 1;  // a lane that is ahead leaves its next value beside the one that others read
  fiber.left[fiber.phase] = value;
  fiber.waiting = FOR_WARP;
  fiber.line = line;
  fiber.lanes = lanes;
  yield();
}

uint64_t left_by(unsigned other) {
  const unsigned begin = current / WARP * WARP;
  if (begin + other >= fibers.size() || !(fibers[current].lanes >> other & 1)) {
    fail("takes the value of lane %u, which is not in the mask of line %d", other,
         fibers[current].line);
    to_scheduler();
  }
  return fibers[begin + other].left[fibers[current].phase];
}

void warp_barrier(uint32_t lanes, int line) {
  leave(lanes, 0, line);
  ++fibers[current].warp_epoch;
}

void* atomic(void* address, size_t size) {
  look_at(address, size, true, true, __builtin_return_address(0));
  return address;
}

float half_to_float(uint16_t bits) {
  const _Float16 x = __builtin_bit_cast(_Float16, bits);
  return static_cast<float>(x);
}

uint16_t float_to_half(float x) {
  return __builtin_bit_cast(uint16_t, static_cast<_Float16>(x));
}

}  // namespace host

extern "C" {
struct Range {
  char* begin;
  size_t size;
};

// Runs the grid; false if something was wrong, which `said` then tells. `declared` is the shared
// memory of the kernel's own object, `shared` bytes of it the launch gives.
bool run_grid(void (*kernel)(void**), void** parameters, const unsigned* grid, unsigned threads,
              size_t shared, Range declared, const Range* buffers, size_t n_buffers, bool backwards,
              char* said, size_t said_size) {
  launch = {kernel, parameters, {grid[0], grid[1], grid[2]}, {threads, 1, 1}};
  fault = said;
  fault_size = said_size;
  failed = false;
  if (fibers.size() < threads)
    for (size_t i = fibers.size(); i < threads; ++i) {
      fibers.emplace_back();
      fibers.back().stack = static_cast<char*>(aligned_alloc(4096, STACK));
    }
  while (fibers.size() > threads) {
    free(fibers.back().stack);
    fibers.pop_back();
  }
  dynamic.resize(shared + 16);
  memories.clear();
  if (declared.size)
    memories.push_back({declared.begin, declared.begin + declared.size, true, {}, {}});
  if (shared) memories.push_back({dynamic.data(), dynamic.data() + shared, true, {}, {}});
  for (size_t i = 0; i < n_buffers; ++i) {
    char* const begin = buffers[i].begin;
    memories.push_back({begin, begin + buffers[i].size, false, {}, {}});
    memories.back().shadow.resize(buffers[i].size);
  }
  running = true;
  const uint64_t blocks = uint64_t{grid[0]} * grid[1] * grid[2];
  for (uint64_t k = 0; k < blocks && !failed; ++k) {
    const uint64_t i = backwards ? blocks - 1 - k : k;
    block_at = {unsigned(i % grid[0]), unsigned(i / grid[0] % grid[1]), unsigned(i / grid[0] / grid[1])};
    run_block(backwards);
  }
  running = false;
  return !failed;
}

// What the compiler calls.
#define SITE __builtin_return_address(0)
void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
#define ACCESS(size)                                                                          \
  void __tsan_read##size(void* p) { look_at(p, size, false, false, SITE); }                   \
  void __tsan_write##size(void* p) { look_at(p, size, true, false, SITE); }                   \
  void __tsan_unaligned_read##size(void* p) { look_at(p, size, false, false, SITE); }         \
  void __tsan_unaligned_write##size(void* p) { look_at(p, size, true, false, SITE); }         \
  void __tsan_volatile_read##size(void* p) { look_at(p, size, false, false, SITE); }          \
  void __tsan_volatile_write##size(void* p) { look_at(p, size, true, false, SITE); }
ACCESS(1)
ACCESS(2)
ACCESS(4)
ACCESS(8)
ACCESS(16)
void __tsan_read_range(void* p, size_t size) {
  for (size_t i = 0; i < size; ++i) look_at(static_cast<char*>(p) + i, 1, false, false, SITE);
}
void __tsan_write_range(void* p, size_t size) {
  for (size_t i = 0; i < size; ++i) look_at(static_cast<char*>(p) + i, 1, true, false, SITE);
}
void __tsan_vptr_update(void**, void*) {}

// What the other sanitizer says of arithmetic, shifts, indices and alignment.
__attribute__((weak)) void __ubsan_get_current_report_data(const char** kind, const char** message, const char** file,
                                     unsigned* line, unsigned* column, char** address);
void __ubsan_on_report() {
  const char *kind, *message, *file;
  unsigned line, column;
  char* address;
  __ubsan_get_current_report_data(&kind, &message, &file, &line, &column, &address);
  if (running) fail("%s (line %u)", message, line);
}
}
