// Kernel bodies with a fault, each after its name and a part of the error message. The faulty line
// ends in "// !"; where several lines are at fault together, any of them may be reported.

// read-beyond: reads 4 bytes outside of every buffer
  out[threadIdx.x] = x[threadIdx.x + 1];  // !

// read-before: reads 4 bytes outside of every buffer
  const int at = static_cast<int>(threadIdx.x) - 1;
  out[threadIdx.x] = x[at];  // !

// write-beyond: writes 4 bytes outside of every buffer
  out[threadIdx.x] = 0;
  if (threadIdx.x == 5) out[n] = 0;  // !

// half-beyond: outside of every buffer
  const int4 four = *reinterpret_cast<const int4*>(x + n - 60 + threadIdx.x / 4 * 4);  // !
  out[threadIdx.x] = four.x;

// unaligned: no multiple of what the type demands
  const int4 four = *reinterpret_cast<const int4*>(x + 1);  // !
  out[threadIdx.x] = four.x + four.w;

// unaligned-word: no multiple of what the type demands
  const char* const bytes = reinterpret_cast<const char*>(x);
  out[threadIdx.x] = *reinterpret_cast<const int*>(bytes + 2);  // !

// shared-beyond: outside of every buffer
  DYNAMIC_SHARED(int, held);
  held[threadIdx.x] = x[threadIdx.x];  // !
  out[threadIdx.x] = held[threadIdx.x];

// shared-unwritten: reads 4 bytes of shared memory that nobody has written
  __shared__ int held[64];
  if (threadIdx.x < 63) held[threadIdx.x] = x[threadIdx.x];
  __syncthreads();
  out[threadIdx.x] = held[63 - threadIdx.x];  // !

// shared-counted-unwritten: of shared memory that nobody has written
  __shared__ int count;
  atomicAdd(&count, 1);  // !
  __syncthreads();
  out[threadIdx.x] = count;

// shared-of-the-block-before: of shared memory that nobody has written
  __shared__ int held;
  if (threadIdx.x == 0 && blockIdx.x == 0) held = 1;
  __syncthreads();
  out[threadIdx.x] = held;  // !

// no-barrier-before-reading: with no barrier between
  __shared__ int held[64];
  for (int i = 0; i < 2; ++i) {
    held[threadIdx.x] = x[threadIdx.x] + i;  // !
    if (i == 0) __syncthreads();
    out[threadIdx.x] = held[63 - threadIdx.x];  // !
    if (i == 0) __syncthreads();
  }

// no-barrier-after-reading: with no barrier between
  __shared__ int held[64];
  held[threadIdx.x] = 0;
  __syncthreads();
  out[threadIdx.x] = held[(threadIdx.x + 32) % 64];  // !
  held[threadIdx.x] = 1;  // !

// two-write: with no barrier between
  __shared__ int held;
  held = threadIdx.x;  // !
  __syncthreads();
  out[threadIdx.x] = held;

// a-shuffle-is-no-barrier: with no barrier between
  __shared__ int held[64];
  held[threadIdx.x] = __shfl_sync(ALL, x[threadIdx.x], 0);
  const int one = __shfl_sync(ALL, 1, 0);
  out[threadIdx.x] = held[threadIdx.x ^ one];  // !

// half-a-warp-is-no-warp: with no barrier between
  __shared__ int held[64];
  held[threadIdx.x] = x[threadIdx.x];
  if (threadIdx.x % 32 < 16) __syncwarp(0xffffu); else __syncwarp(0xffff0000u);
  out[threadIdx.x] = held[threadIdx.x ^ 16];  // !

// a-warp-is-no-block: with no barrier between
  __shared__ int held[64];
  held[threadIdx.x] = x[threadIdx.x];
  __syncwarp();
  out[threadIdx.x] = held[threadIdx.x ^ 32];  // !

// global-race: with no barrier between
  out[threadIdx.x] = 1;  // !
  __syncwarp();
  out[threadIdx.x] += out[threadIdx.x ^ 32];  // !

// blocks-race: with no barrier between
  if (threadIdx.x == 0) out[0] = 7;  // !

// blocks-know-no-barrier: with no barrier between
  const int half = threadIdx.x % 32;
  if (blockIdx.x == 0 && threadIdx.x < 32) out[half] = 7;  // !
  __threadfence();
  __syncthreads();
  if (blockIdx.x == 1 && threadIdx.x < 32) out[half + 32] = out[half];  // !

// atomic-and-not: with no barrier between
  if (threadIdx.x < 32)
    atomicAdd(&out[0], 1);  // !
  else
    out[0] = 1;  // !

// gone-before-the-barrier: 63 of 64 threads are gone and never reach the barrier
  out[threadIdx.x] = 0;
  if (threadIdx.x != 7) return;
  __syncthreads();  // !

// different-barriers: threads wait at different barriers
  out[threadIdx.x] = 0;
  if (threadIdx.x < 32)
    __syncthreads();  // !
  else
    __syncthreads();  // !

// a-lane-that-never-comes: waits for lanes of its warp that never come there
  out[threadIdx.x] = 0;
  if (threadIdx.x != 40) out[threadIdx.x] = __shfl_xor_sync(ALL, x[threadIdx.x], 1);  // !

// lanes-apart: waits for lanes of its warp that never come there
  if (threadIdx.x % 2)
    out[threadIdx.x] = __ballot_sync(ALL, 1);  // !
  else
    out[threadIdx.x] = __ballot_sync(0x55555555u, 1);

// without-itself: takes part with a mask that is without its lane
  out[threadIdx.x] = __any_sync(0xffffu, x[threadIdx.x] == 3);  // !

// from-outside-the-mask: takes the value of lane 31, which is not in its mask
  if (threadIdx.x % 32 < 16)
    out[threadIdx.x] = __shfl_sync(0xffffu, x[threadIdx.x], 31);  // !

// overflow: overflows a signed integer
  out[threadIdx.x] = x[threadIdx.x] + 0x7fffffff;  // !

// shift: shifts by less than zero or more
  out[threadIdx.x] = 1 << (x[threadIdx.x] / 2 + 1);  // !

// local-beyond: element that the array does not have
  int held[4] = {1, 2, 3, 4};
  out[threadIdx.x] = held[x[threadIdx.x] / 16 + 1];  // !

// null: reads 4 bytes outside of every buffer
  const int* const nowhere = x[threadIdx.x] < 0 ? x : nullptr;
  out[threadIdx.x] = nowhere[threadIdx.x];  // !

// division: divides by zero
  out[threadIdx.x] = 5 / (63 - x[threadIdx.x]);  // !

// read-ahead: before it has waited for the kernel before it
  launch_dependents();
  const int early = x[threadIdx.x];  // !
  wait_for_previous();
  out[threadIdx.x] = early;

// written-ahead: before it has waited for the kernel before it
  launch_dependents();
  if (threadIdx.x) wait_for_previous();
  out[threadIdx.x] = threadIdx.x;  // !
