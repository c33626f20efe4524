// Gate and up projections of few tokens with F16 or BF16 weights on tensor cores; gated activation
// as epilogue. Of a thread block's 16 rows the first eight are gate's, the others up's.
#include "linear_gated.cuh"
#include "linear_tensor.cuh"

constexpr int OF_BOTH = FEW_ROWS / 2;

template <class Of>
static __device__ __forceinline__ void gate_few(const float* __restrict__ x, const Rows& gate,
                                                const Rows& up, float* __restrict__ gated,
                                                int tokens, int hidden, FewShared& shared, Of of) {
  const int first = static_cast<int>(blockIdx.x) * OF_BOTH;
  const float sum = product_of_few(x, tokens, hidden, shared, [&](int i) {
    const int row = min(first + i % OF_BOTH, gate.count - 1);
    return reinterpret_cast<const T*>(i < OF_BOTH ? gate.weight : up.weight) +
           static_cast<size_t>(row) * hidden;
  });
  const int i = threadIdx.x / FEW_TOKENS, token = threadIdx.x % FEW_TOKENS;
  const int row = first + i % OF_BOTH;
  const size_t at = static_cast<size_t>(token) * gate.count + row;
  auto& found = shared.found[0].sums[0];
  __syncthreads();  // all halves have been added
  if (threadIdx.x < FEW_SUMS) found[i][token] = sum;
  __syncthreads();
  if (threadIdx.x >= FEW_SUMS || row >= gate.count || token >= tokens) return;
  (i < OF_BOTH ? gate : up).out[at] = sum;
  if (i < OF_BOTH) gated[at] = of(sum, found[i + OF_BOTH][token]);
}

#define JOINED(name, Of)                                                                         \
  extern "C" __global__ void FEW_ON_TENSOR_CORES linear_##name(                                  \
      const float* x, const uint8_t* weight, const uint8_t* weight_1, float* out, float* out_1,  \
      float* gated, int tokens, int hidden, int rows, int rows_1) {                              \
    DYNAMIC_SHARED(FewShared, shared);                                                           \
    gate_few(x, {weight, out, rows, 0}, {weight_1, out_1, rows_1, 0}, gated, tokens, hidden,     \
             *shared, Of());                                                                     \
  }
EACH_JOINED(JOINED)
