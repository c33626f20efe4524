// Emulates a launch: thread blocks one after the other, a block's threads as fibers (fibers.h). The
// kernel is compiled with -fsanitize=thread, and the hooks at the end of this file check each
// memory access (accesses.h). The first fault stops the launch.
#include "accesses.h"

namespace host {

namespace {

std::vector<char> dynamic;

dim3 unflatten(unsigned i, dim3 size) {
  return {i % size.x, i / size.x % size.y, i / size.x / size.y};
}

}  // namespace

dim3 thread_index() { return unflatten(current, launch.block); }
dim3 block_index() { return block_at; }
dim3 block_dim() { return launch.block; }
dim3 grid_dim() { return launch.grid; }
void* dynamic_shared() { return dynamic.data(); }
unsigned lane() { return current % WARP; }

void barrier(Site site) { wait(FOR_BLOCK, site); }

void leave(uint32_t lanes, uint64_t value, Site site, bool joins) {
  Fiber& fiber = fibers[current];
  if (!(lanes >> lane() & 1)) {
    fail("takes part with a mask that is without its lane (%s:%d)", site.file, site.line);
    to_scheduler();
  }
  fiber.left = value;
  fiber.lanes = lanes;
  fiber.joins = joins;
  wait(FOR_WARP, site);
}

uint64_t left_by(unsigned other) {
  const Fiber& fiber = fibers[current];
  if (!(fiber.lanes >> other & 1)) {
    fail("takes the value of lane %u, which is not in its mask (%s:%d)", other, fiber.site.file,
         fiber.site.line);
    to_scheduler();
  }
  return fiber.found[other];
}

void* atomic(void* address, size_t size, Site site) {
  look_at(address, size, true, true, {nullptr, site});
  return address;
}

void await_previous() { fibers[current].waited = true; }

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

// Whether the next grid is a programmatic dependent launch, which itself waits for the preceding
// kernel, and the addresses of buffers that no kernel writes.
void begins_early(bool may, char** lasting, size_t count) {
  host::early = may;
  host::lasting.assign(lasting, lasting + count);
}

// Runs the grid; returns false after a fault and describes it in `said`. `declared` is the kernel's
// static shared memory, `shared` the size of its dynamic shared memory.
bool run_grid(void (*kernel)(void**), void** parameters, const unsigned* grid, unsigned threads,
              size_t shared, Range declared, const Range* buffers, size_t n_buffers, bool backwards,
              char* said, size_t said_size) {
  using namespace host;
  launch = {kernel, parameters, {grid[0], grid[1], grid[2]}, {threads, 1, 1}};
  fault = said;
  fault_size = said_size;
  failed = false;
  set_threads(threads);
  dynamic.resize(shared + 16);
  memories.clear();
  memories.emplace_back(declared.begin, declared.size, true);
  memories.emplace_back(dynamic.data(), shared, true);
  for (size_t i = 0; i < n_buffers; ++i)
    memories.emplace_back(buffers[i].begin, buffers[i].size, false);
  std::sort(memories.begin(), memories.end(),
            [](const Memory& a, const Memory& b) { return a.begin < b.begin; });
  for (Memory& memory : memories)
    for (const char* const address : lasting)
      memory.lasting |= address >= memory.begin && address < memory.end;
  running = true;
  const unsigned blocks = grid[0] * grid[1] * grid[2];
  for (unsigned k = 0; k < blocks && !failed; ++k) {
    block_number = backwards ? blocks - 1 - k : k;
    block_at = unflatten(block_number, launch.grid);
    memset(declared.begin, 0xFF, declared.size);
    memset(dynamic.data(), 0xFF, shared);
    run_block(backwards);
  }
  running = false;
  memories.clear();
  return !failed;
}

// Hooks of ThreadSanitizer.
#define LOOK(p, size, writes) \
  host::look_at(p, size, writes, false, {__builtin_return_address(0), {}})
void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
#define ACCESS(size)                                               \
  void __tsan_read##size(void* p) { LOOK(p, size, false); }            \
  void __tsan_write##size(void* p) { LOOK(p, size, true); }            \
  void __tsan_unaligned_read##size(void* p) { LOOK(p, size, false); }  \
  void __tsan_unaligned_write##size(void* p) { LOOK(p, size, true); }  \
  void __tsan_volatile_read##size(void* p) { LOOK(p, size, false); }   \
  void __tsan_volatile_write##size(void* p) { LOOK(p, size, true); }
ACCESS(1)
ACCESS(2)
ACCESS(4)
ACCESS(8)
ACCESS(16)
void __tsan_read_range(void* p, size_t size) {
  for (size_t i = 0; i < size; ++i) LOOK(static_cast<char*>(p) + i, 1, false);
}
void __tsan_write_range(void* p, size_t size) {
  for (size_t i = 0; i < size; ++i) LOOK(static_cast<char*>(p) + i, 1, true);
}
void __tsan_vptr_update(void**, void*) {}

// Handlers of UndefinedBehaviorSanitizer; their data begins with the location.
struct Location {
  const char* file;
  unsigned line, column;
};
static void undefined(const Location* at, const char* what) {
  const char* const slash = strrchr(at->file, '/');
  host::fail("%s (%s:%u)", what, slash ? slash + 1 : at->file, at->line);
  host::to_scheduler();
}
#define UNDEFINED(name, what) \
  void __ubsan_handle_##name(const Location* at) { undefined(at, what); }
UNDEFINED(add_overflow, "overflows a signed integer")
UNDEFINED(sub_overflow, "overflows a signed integer")
UNDEFINED(mul_overflow, "overflows a signed integer")
UNDEFINED(negate_overflow, "overflows a signed integer")
UNDEFINED(divrem_overflow, "divides by zero, or overflows")
UNDEFINED(shift_out_of_bounds, "shifts by less than zero or more than there are bits")
UNDEFINED(out_of_bounds, "takes an element that the array does not have")
UNDEFINED(missing_return, "returns nothing")
UNDEFINED(type_mismatch_v1, "goes to an address that is no multiple of what the type demands")
}
