// FlashAttention (Dao et al., arXiv 2205.14135) with split-KV, for up to FEW tokens;
// attention_merge.cu merges the partial results of chunks.
//
// A thread block processes every gridDim.x-th chunk of a tile. Pieces of keys and values are loaded
// with cp.async into a ring buffer of three stages in shared memory; used stages are refilled:
//
//   in use     in flight
//   K0 K1      V0             scores, from two pieces of keys
//   V0         V1 K0          weighted sums, from one piece of values
//   V1         K0 K1          (K: of the next chunk)
//
// Chunks of smaller pieces have more of them in the same order, so loads are always in flight
// during computation. A chunk's cells are prefetched with the keys of the chunk before, their
// positions with its own keys.
#include "attention_tile.cuh"

static_assert(THREADS == CHUNK, "a thread looks for a cell");

// Two pieces of keys, addressed as one.
template <class Cache>
struct Pair {
  using Key = const uint8_t*;
  const uint8_t *first, *second;
  int cells, stride;  // per piece; bytes per cell

  __device__ Key key(int cell) const {
    return cell < cells ? first + cell * stride : second + (cell - cells) * stride;
  }
  __device__ void read(Key key, int d, float (&x)[8]) const { decode(Cache(), key, d, x); }
  __device__ float times_length(int, float x) const { return x; }
};

// Prefetches a run's cells from `begin` on, of one chunk, to shared memory.
static __device__ __forceinline__ void list_cells(int* to, const Run& run, int begin) {
  const int most = min(run.most - begin, CHUNK);
  if (const int c = threadIdx.x; c < most) copy_async(to + c, run.list + begin + c);
}

// Ring buffer of a run's pieces of keys and values, for the chunks of this block.
template <class Cache>
struct Pieces {
  const Inputs& in;
  const Workspace& workspace;  // cells [2, CHUNK]: of a chunk and the next
  const Run& run;
  const uint8_t *k, *v;  // of the head
  size_t row_bytes;
  int cells, room;           // per piece; bytes per stage
  int used = 0, place = 0;   // stages: next to be used, next to be loaded
  int part = 0, turn = 0;    // of the piece loaded next: index in its chunk, index of the chunk

  __device__ int begin(int turn) const {
    return (static_cast<int>(blockIdx.x) + turn * static_cast<int>(gridDim.x)) * CHUNK;
  }

  // Prefetches the cells of a chunk.
  __device__ void list(int turn) const {
    list_cells(workspace.cells + turn % 2 * CHUNK, run, begin(turn));
  }

  // Starts loading the next piece. Every piece is a copy group, even an empty one.
  __device__ void fetch_next() {
    const int of_keys = CHUNK / cells, most = min(run.most - begin(turn), CHUNK);
    const int* const own = workspace.cells + turn % 2 * CHUNK;
    const bool keys = part < of_keys;
    const int first = (keys ? part : part - of_keys) * cells;
    if (const int c = threadIdx.x; part == 0 && c < most)
      copy_async(workspace.places + c, in.cell_positions + own[c]);
    if (part == 1) list(turn + 1);
    fetch<Cache>(workspace.stage + place * room, keys ? k : v, row_bytes, own + first,
                 min(most - first, cells), in.head_dim);
    place = place == RING - 1 ? 0 : place + 1;
    if (++part == 2 * of_keys) part = 0, ++turn;
  }

  // Returns the next piece to use, which must have arrived.
  __device__ uint8_t* next() {
    uint8_t* const here = workspace.stage + used * room;
    used = used == RING - 1 ? 0 : used + 1;
    return here;
  }
};

// A run's chunks, with register tiles of N rows for scores, and of N rows x 2 elements for values.
template <class Cache, int N>
static __device__ __forceinline__ void attend_pieces(const Inputs& in, const Workspace& workspace,
                                                     const Run& run, int kv_head, int cells) {
  const int halves = in.head_dim / 2, stride = stride_of<Cache>(in.head_dim);
  const int first = static_cast<int>(threadIdx.x) / halves * N, d = threadIdx.x % halves * 2;
  const int bytes = head_bytes<Cache>(in.head_dim);
  const size_t row_bytes = static_cast<size_t>(bytes) * in.kv_heads;
  const size_t head = static_cast<size_t>(kv_head) * bytes;
  Pieces<Cache> pieces = {in,    workspace, run, in.k + head, in.v + head, row_bytes,
                          cells, cells * stride};
  await_copies<0>();  // the first chunk's cells
  __syncthreads();
#pragma unroll 1
  for (int i = 0; i < RING; ++i) pieces.fetch_next();
#pragma unroll 1
  for (int turn = 0; pieces.begin(turn) < run.most; ++turn) {
    const int begin = pieces.begin(turn), most = min(run.most - begin, CHUNK);
    const int fewest = run.fewest(in, begin);
#pragma unroll 1
    for (int c = 0; c < CHUNK; c += 2 * cells) {
      await_copies<RING - 2>();
      __syncthreads();
      if (const int row = threadIdx.x; c == 0 && row < padded(workspace, run)) {
        const int seen = row < run.rows ? cells_of(in, run.token(row)) : 0;
        workspace.row[row].seen = min(max(seen - begin, 0), CHUNK);
      }
      const uint8_t *const one = pieces.next(), *const other = pieces.next();
      const Pair<Cache> keys = {one, other, cells, stride};
      if (c < most) scores<N, 1>(keys, in, workspace, run, c, min(2 * cells, most - c));
      __syncthreads();
#pragma unroll 1
      for (int i = 0; i < 2; ++i) pieces.fetch_next();
    }
    softmax_chunk(workspace, padded(workspace, run));
    float sums[N][2] = {};
#pragma unroll 1
    for (int c = 0; c < CHUNK; c += cells) {
      await_copies<RING - 1>();
      __syncthreads();
      const Staged<Cache> staged(pieces.next(), in.head_dim);
      const int count = min(cells, most - c), common = min(max(fewest - c, 0), count);
      if (first < run.rows) values(staged, sums, workspace, first, d, c, count, common);
      __syncthreads();
      pieces.fetch_next();
    }
    store_chunk(sums, in, workspace, run, first, d, chunks_of(in.capacity), begin / CHUNK);
  }
}

// Selects the smallest register tile, from N to FEW_ROWS rows per thread, that covers the run.
template <class Cache, int N>
static __device__ __forceinline__ void attend_rows(const Inputs& in, const Workspace& workspace,
                                                    const Run& run, int kv_head, int cells) {
  if constexpr (N < FEW_ROWS)
    if (THREADS / workspace.staged * N < run.rows || THREADS / (in.head_dim / 2) * N < run.rows)
      return attend_rows<Cache, 2 * N>(in, workspace, run, kv_head, cells);
  attend_pieces<Cache, N>(in, workspace, run, kv_head, cells);
}

extern "C" __global__ void __launch_bounds__(THREADS, FEW_AT_ONCE) attention_few(INPUTS) {
  DYNAMIC_SHARED(uint8_t, memory);
  wait_for_previous();
  const Inputs in = GIVEN;
  const Tiling tiling(heads / kv_heads, tokens, gridDim.y / kv_heads, gridDim.z);
  const Tile tile(in, tiling, blockIdx.y, blockIdx.z);
  int rows = 1, cells = PIECE_CELLS;
  while (rows < min(tiling.height, tokens) * tiling.width) rows *= 2;
  while (cells * stride_of<FORMAT>(head_dim) > PIECE_BYTES) cells /= 2;
  const Workspace workspace =
      workspace_at<FORMAT>(memory, rows, head_dim, 2 * cells, RING * cells, 2);
  for (int t = tile.first; t < tile.last;) {
    const Run run(in, tile, t);
    t = run.t1;
    if (chunks_of(run.most) <= blockIdx.x) continue;
    __syncthreads();  // the previous run's shared memory is free
    list_cells(workspace.cells, run, static_cast<int>(blockIdx.x) * CHUNK);
    commit_group();
    load_rows(in, workspace, run);
    attend_rows<FORMAT, 1>(in, workspace, run, tile.kv_head, cells);
  }
}
