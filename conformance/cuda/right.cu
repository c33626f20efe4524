// Correct kernel bodies, each after its name; test_emulator.py has their outputs for the inputs
// 0, 1, 2, ...

// an-early-return:
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n - 5) return;
  out[i] = x[i];

// reversed-in-shared-memory:
  __shared__ int held[64];
  for (int i = 0; i < 3; ++i) {
    held[threadIdx.x] = x[threadIdx.x] + i;
    __syncthreads();
    out[threadIdx.x] = held[63 - threadIdx.x];
    __syncthreads();
  }

// dynamic-shared-memory:
  DYNAMIC_SHARED(int, held);
  held[threadIdx.x] = x[threadIdx.x];
  __syncthreads();
  out[threadIdx.x] = held[(threadIdx.x + 1) % 64];

// shared-memory-in-a-warp:
  __shared__ int held[64];
  held[threadIdx.x] = x[threadIdx.x];
  __syncwarp();
  const int sum = held[threadIdx.x] + held[threadIdx.x ^ 1];
  __syncwarp();
  held[threadIdx.x] = sum;
  __syncwarp();
  out[threadIdx.x] = held[threadIdx.x ^ 1];

// halves-of-a-warp-then-all:
  __shared__ int held[64];
  if (threadIdx.x % 32 < 16) {
    __syncwarp(0xffffu);
    held[threadIdx.x] = x[threadIdx.x];
    __syncwarp(0xffffu);
  } else {
    held[threadIdx.x] = x[threadIdx.x];
  }
  __syncwarp();
  out[threadIdx.x] = held[threadIdx.x ^ 16];

// shuffles:
  const int own = x[threadIdx.x], lane = own % 32;
  int found = __shfl_sync(ALL, own, 31 - lane) == own - lane + 31 - lane;
  found += __shfl_xor_sync(ALL, own, 5) == (own ^ 5);
  found += __shfl_down_sync(ALL, own, 3) == (lane + 3 < 32 ? own + 3 : own);
  found += __shfl_up_sync(ALL, own, 3) == (lane < 3 ? own : own - 3);
  found += __shfl_sync(ALL, 0.5 * own, 7) == 0.5 * (own - lane + 7);
  found += __shfl_sync(ALL, static_cast<uint64_t>(own) << 40, 7) >> 40 == own - lane + 7u;
  out[threadIdx.x] = found;

// shuffles-of-some-then-of-all:
  const int own = x[threadIdx.x];
  int found = own;
  if (own % 32 < 8) {
    found = __shfl_xor_sync(0xffu, found, 1);
    found = __shfl_xor_sync(0xffu, found, 2);
    found = __shfl_xor_sync(0xffu, found, 3);
  }
  out[threadIdx.x] = __shfl_xor_sync(ALL, found, 9);

// lanes-that-run-ahead:
  int found = __shfl_sync(ALL, x[threadIdx.x], 0);
  if (threadIdx.x % 32 >= 16)
    for (int i = 0; i < 5; ++i) found += __shfl_sync(0xffff0000u, 100 * i, 16 + i);
  out[threadIdx.x] = found;

// votes:
  const int own = x[threadIdx.x];
  const uint32_t odd = __ballot_sync(ALL, own & 1);
  int found = odd == 0xaaaaaaaau;
  found += __any_sync(ALL, own % 32 == 9) && !__any_sync(ALL, own < 0);
  found += __all_sync(ALL, own >= 0) && !__all_sync(ALL, own % 32 != 9);
  found += __match_any_sync(ALL, own % 4) == 0x11111111u << own % 4;
  out[threadIdx.x] = found;

// atomics:
  __shared__ int count, most, least, first;
  if (threadIdx.x == 0) count = most = 0, least = 1000, first = -1;
  __syncthreads();
  atomicAdd(&count, 1);
  atomicMax(&most, x[threadIdx.x]);
  atomicMin(&least, x[threadIdx.x]);
  atomicCAS(&first, -1, 7);
  __syncthreads();
  out[threadIdx.x] = 1000 * count + 100 * least + most + first;

// atomics-of-blocks:
  atomicAdd(&out[x[threadIdx.x]], blockIdx.x + 1);

// tables:
  constexpr int LOCAL[4] = {4, 3, 2, 1};
  int sum = 0;
  for (int i = 0; i < 4; ++i) sum += LOCAL[i] * TABLE[i] + TABLE[x[threadIdx.x] % 4];
  for (int i = 4; i < 40; ++i) sum += TABLE[i] * x[i];
  out[threadIdx.x] = sum;

// sixteen-bytes-at-once:
  if (threadIdx.x >= 16) return;
  int4 four = reinterpret_cast<const int4*>(x)[threadIdx.x];
  four.y += four.x;
  reinterpret_cast<int4*>(out)[threadIdx.x] = four;

// what-a-gpu-would-wrap:
  const uint32_t large = 0xffffff00u + x[threadIdx.x];
  out[threadIdx.x] = static_cast<int>((large << 24) >> 24) + static_cast<int8_t>(200);
