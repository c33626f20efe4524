// Attention over MiniCache pages, which two layers share (reference/formats/minicache.py), and over
// cells. Rows are read in place, as cells are, not restored: a merged token's row is a direction,
// so its dot product with a query is multiplied by the token's length, and so is its weight before
// it multiplies its value's direction. If all is retained, bits equal attention's.
#include "attention_pages.cuh"

constexpr int GROUP_ = 256, PLAIN = 9 * GROUP_;  // tokens; bytes of a head's page besides rows

struct Pages {
  static constexpr int GROUP = GROUP_;
  Paged paged;
  int size, upper;  // bytes of a head's page; whether the layer is the upper one
  float* lengths;   // [CHUNK], in shared memory

  // Returns the head's page, after loading its tokens' row indices and lengths, from `begin` on,
  // into workspace.cells and `lengths`.
  __device__ const uint8_t* find(const uint8_t* pages, const Inputs& in, const Workspace& workspace,
                                 const Run& run, int kv_head, int place, int begin) const {
    const uint8_t* const page = paged.page(pages, in, run, kv_head, place, size);
    const int width = 2 * in.head_dim, retained = (size - PLAIN) / width - GROUP;
    const float* const own = reinterpret_cast<const float*>(page + width * (GROUP + retained));
    const uint8_t* const numbers = reinterpret_cast<const uint8_t*>(own + 2 * GROUP);
    for (int c = threadIdx.x; c < CHUNK; c += THREADS) {
      const int number = numbers[begin + c];
      workspace.cells[c] = number + (number >= GROUP - retained ? upper * retained : 0);
      lengths[c] = own[upper * GROUP + begin + c];
    }
    __syncthreads();
    return page;
  }

  template <int SCORES, int CELLS, int ROWS, int DIMS>
  __device__ __forceinline__ void sum(float (&sums)[ROWS][DIMS], const Inputs& in,
                                      const Workspace& workspace, const Run& run, int kv_head,
                                      int chunk, int first, int d) const {
    const int place = chunk * CHUNK / GROUP, begin = chunk * CHUNK % GROUP;
    const size_t width = 2 * in.head_dim;
    __syncthreads();
    see(workspace, run, chunk * CHUNK, CHUNK);
    const uint8_t* const keys = find(paged.k, in, workspace, run, kv_head, place, begin);
    score_rows<f16, SCORES, CELLS>(in, workspace, run, keys, width, CHUNK, lengths);
    const uint8_t* const of_values = find(paged.v, in, workspace, run, kv_head, place, begin);
    add_values<f16>(sums, in, workspace, run, of_values, width, first, d, CHUNK, CHUNK, lengths);
  }
};

#define KERNEL(name, blocks, attend)                                                            \
  extern "C" __global__ void __launch_bounds__(THREADS, blocks)                                 \
      name(INPUTS_BEFORE, PAGES, int64_t upper, INPUTS_BEHIND, int pages, int page, int slots) { \
    DYNAMIC_SHARED(uint8_t, memory);                                                            \
    __shared__ float lengths[CHUNK];                                                            \
    Inputs in = GIVEN;                                                                          \
    in.packed = packed;                                                                         \
    const PagesAndCells<Pages> held = {{GIVEN_PAGES, page, static_cast<int>(upper), lengths}, {}}; \
    attend<f16>(held, in, memory);                                                              \
  }

KERNEL(attention_minicache_few, 3, attend_few)
KERNEL(attention_minicache_many, 2, attend_many)
MERGE_KERNEL(attention_minicache_merge, GROUP_)
