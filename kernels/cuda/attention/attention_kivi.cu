// Attention over 2-bit KIVI pages (reference/formats/kivi.py), and over cells. A chunk's codes are
// copied to shared memory packed, zero points and steps as float32; elements are dequantized where
// they are used, to exactly the float32 that the page stands for.
#include "attention_pages.cuh"

constexpr int GROUP_ = 32, PAGE_BYTES = 11;  // tokens; bytes per channel of a head

// Quantization group. A page in shared memory: its words, then the zero points and steps of groups.
struct Group {
  float zero, step;

  __device__ float number(uint32_t word, int field) const {
    return fmaf(static_cast<float>(word >> 2 * field & 3), step, zero);
  }
};

struct TwoBits {
  const uint8_t* stage;
  int head_dim, begin;  // the chunk's token that `key` counts from

  struct Key {
    const uint32_t* words;  // a token's, 16 channels each, 32 words apart
    const Group* groups;    // by channel
  };

  __device__ const uint32_t* words(int token) const {
    return reinterpret_cast<const uint32_t*>(stage + token / GROUP_ * 16 * head_dim);
  }
  __device__ const Group* groups(int token) const {
    return reinterpret_cast<const Group*>(words(token) + 2 * head_dim);
  }

  __device__ Key key(int cell) const {
    return {words(begin + cell) + (begin + cell) % GROUP_, groups(begin + cell)};
  }

  __device__ void read(Key key, int d, float (&x)[8]) const {
    const uint32_t word = key.words[d / 16 * GROUP_] >> 2 * (d % 16);
#pragma unroll
    for (int e = 0; e < 8; e += 2) {
      const float4 two = *reinterpret_cast<const float4*>(key.groups + d + e);
      x[e] = Group{two.x, two.y}.number(word, e);
      x[e + 1] = Group{two.z, two.w}.number(word, e + 1);
    }
  }

  __device__ float times_length(int, float x) const { return x; }

  // COUNT tokens, from a multiple of COUNT on, all in one half of a page.
  template <int COUNT, int DIMS>
  __device__ void values(int cell, int d, float (&x)[COUNT][DIMS]) const {
    const int token = cell % GROUP_;
    uint32_t own[DIMS];
    load_words<DIMS>(words(cell) + d / 16 * GROUP_ + token / 16 * 16 + d % 16, own);
    const Group* const of_token = groups(cell) + d / GROUP_ * GROUP_ + token;
#pragma unroll
    for (int j = 0; j < COUNT; ++j)
#pragma unroll
      for (int e = 0; e < DIMS; ++e) x[j][e] = of_token[j].number(own[e], token % 16 + j);
  }
};

struct Pages {
  static constexpr int GROUP = GROUP_, OF_CHUNK = CHUNK / GROUP;
  Paged paged;

  // Copies a head's pages asynchronously (cp.async), and converts their zero points and steps.
  __device__ void fetch(const uint8_t* pages, const Inputs& in, const Workspace& workspace,
                        const Run& run, int kv_head, int first, int count) const {
    const int head_dim = in.head_dim, size = head_dim * PAGE_BYTES;
    for (int i = threadIdx.x; i < count * head_dim / 2; i += THREADS) {
      const int p = i / (head_dim / 2), word = i % (head_dim / 2);
      const uint8_t* const page = paged.page(pages, in, run, kv_head, first + p, size);
      copy_async(reinterpret_cast<uint4*>(workspace.stage + p * 16 * head_dim) + word,
                 reinterpret_cast<const uint4*>(page) + word);
    }
    commit_group();
    for (int i = threadIdx.x; i < count * head_dim; i += THREADS) {
      const int p = i / head_dim, place = i % head_dim;
      const uint8_t* const page = paged.page(pages, in, run, kv_head, first + p, size);
      const half_t step = {static_cast<uint16_t>(page[10 * head_dim + place] << 7)};
      Group* const groups =
          reinterpret_cast<Group*>(workspace.stage + p * 16 * head_dim + 8 * head_dim);
      groups[place] = {to_float(at<half_t>(page + 8 * head_dim, place)), to_float(step)};
    }
  }

  template <int SCORES, int CELLS, int ROWS, int DIMS>
  __device__ __forceinline__ void sum(float (&sums)[ROWS][DIMS], const Inputs& in,
                                      const Workspace& workspace, const Run& run, int kv_head,
                                      int chunk, int first, int d) const {
    const int begin = chunk * OF_CHUNK, count = min(paged.packed[run.t0] - begin, OF_CHUNK);
    const int most = count * GROUP;
    __syncthreads();
    see(workspace, run, begin * GROUP, most);
    fetch(paged.k, in, workspace, run, kv_head, begin, count);
    await_copies<0>();
    __syncthreads();
    for (int c = 0; c < most; c += workspace.staged) {
      const TwoBits staged = {workspace.stage, in.head_dim, c};
      scores<SCORES, CELLS>(staged, in, workspace, run, c, min(workspace.staged, most - c));
    }
    __syncthreads();
    fetch(paged.v, in, workspace, run, kv_head, begin, count);
    softmax_chunk(workspace, padded(workspace, run));
    await_copies<0>();
    __syncthreads();
    const TwoBits staged = {workspace.stage, in.head_dim, 0};
    if (first < run.rows) values(staged, sums, workspace, first, d, 0, most, most);
  }
};

#define KERNEL(name, blocks, attend)                                                            \
  extern "C" __global__ void __launch_bounds__(THREADS, blocks)                                 \
      name(INPUTS_BEFORE, PAGES, INPUTS_BEHIND, int pages, int slots) {                         \
    DYNAMIC_SHARED(uint8_t, memory);                                                            \
    Inputs in = GIVEN;                                                                          \
    in.packed = packed;                                                                         \
    const PagesAndCells<Pages> held = {{GIVEN_PAGES}, {}};                                      \
    attend<f16>(held, in, memory);                                                              \
  }

KERNEL(attention_kivi_few, 3, attend_few)
KERNEL(attention_kivi_many, 2, attend_many)
MERGE_KERNEL(attention_kivi_merge, GROUP_)
