// Rejection sampling of drafted tokens: p, q float64 [nodes, vocab], one thread block per row.
#include "portable.cuh"

constexpr int THREADS = 256;

// Block reduction in shared memory in a fixed order; `partial` holds a double per thread.
static __device__ double block_sum(double x, double* partial) {
  partial[threadIdx.x] = x;
  __syncthreads();
  for (int half = THREADS / 2; half; half /= 2) {
    if (threadIdx.x < half) partial[threadIdx.x] += partial[threadIdx.x + half];
    __syncthreads();
  }
  const double sum = partial[0];
  __syncthreads();
  return sum;
}

extern "C" __global__ void accept(const double* __restrict__ p, const double* __restrict__ q,
                                  const int* __restrict__ tokens, const double* __restrict__ u,
                                  uint8_t* __restrict__ accepted, int nodes, int vocab) {
  const int node = blockIdx.x * blockDim.x + threadIdx.x;
  if (node >= nodes) return;
  const size_t at = static_cast<size_t>(node) * vocab + tokens[node];
  accepted[node] = q[at] > 0 && u[node] * q[at] < p[at];
}

extern "C" __global__ void recover(const double* __restrict__ p, const double* __restrict__ q,
                                   const int* __restrict__ tokens, double* __restrict__ out,
                                   int nodes, int vocab) {
  __shared__ double partial[THREADS];
  const size_t row = static_cast<size_t>(blockIdx.x) * vocab;
  double own = 0;
  for (int i = threadIdx.x; i < vocab; i += THREADS) own += fmax(0., p[row + i] - q[row + i]);
  const double mass = block_sum(own, partial);
  const bool whole = q[row + tokens[blockIdx.x]] == 0 || mass == 0;
  for (int i = threadIdx.x; i < vocab; i += THREADS)
    out[row + i] = whole ? p[row + i] : fmax(0., p[row + i] - q[row + i]) / mass;
}

extern "C" __global__ void exclude(const double* __restrict__ p, const int* __restrict__ tokens,
                                   double* __restrict__ out, int nodes, int vocab) {
  __shared__ double partial[THREADS];
  const size_t row = static_cast<size_t>(blockIdx.x) * vocab;
  const int token = tokens[blockIdx.x];
  double own = 0;
  for (int i = threadIdx.x; i < vocab; i += THREADS) own += i == token ? 0 : p[row + i];
  const double mass = block_sum(own, partial);
  for (int i = threadIdx.x; i < vocab; i += THREADS)
    out[row + i] = i == token || mass == 0 ? 0 : p[row + i] / mass;
}

// Samples by inverse CDF. Each thread sums a contiguous range of tokens; the first range whose
// prefix sum exceeds the target is scanned again. If rounding hides the target there, its last
// token of nonzero probability is taken.
extern "C" __global__ void pick(const double* __restrict__ p, const double* __restrict__ u,
                                int* __restrict__ tokens, int nodes, int vocab) {
  __shared__ double ends[THREADS];  // prefix sums of the threads' ranges
  __shared__ int chosen;
  const double* const row = p + static_cast<size_t>(blockIdx.x) * vocab;
  const int each = (vocab + THREADS - 1) / THREADS;
  const int begin = min(vocab, static_cast<int>(threadIdx.x) * each);
  const int end = min(vocab, begin + each);
  double own = 0;
  for (int i = begin; i < end; ++i) own += row[i];
  ends[threadIdx.x] = own;
  __syncthreads();
  if (threadIdx.x == 0) {
    double running = 0;
    for (int i = 0; i < THREADS; ++i) ends[i] = running += ends[i];
    const double target = u[blockIdx.x] * running;
    int run = 0;
    while (run < THREADS - 1 && !(ends[run] > target)) ++run;
    while (run && ends[run] == ends[run - 1]) --run;  // skip ranges without probability
    chosen = run;
  }
  __syncthreads();
  if (threadIdx.x != chosen) return;
  const double target = u[blockIdx.x] * ends[THREADS - 1];
  double running = chosen ? ends[chosen - 1] : 0;
  int found = begin;
  for (int i = begin; i < end; ++i) {
    if (!(row[i] > 0)) continue;
    found = i;
    running += row[i];
    if (running > target) break;
  }
  tokens[blockIdx.x] = found;
}
