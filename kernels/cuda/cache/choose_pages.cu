// Top-k pages: one thread block per chooser (token, group of heads) writes the cells of its best
// pages and of the last one, as a list of its own with (cell, KV head) as rows.
#include "selection.cuh"

extern "C" __global__ void __launch_bounds__(256)
    choose_pages(const float* __restrict__ scores, const int* __restrict__ lists,
                 const int* __restrict__ spans, int64_t page_, int64_t chosen_, int64_t kv_heads_,
                 int* __restrict__ out, int* __restrict__ chosen_spans, int tokens, int choosers,
                 int pages, int sequences, int capacity, int rows, int wide) {
  __shared__ Selection workspace;
  const int page = static_cast<int>(page_), kv_heads = static_cast<int>(kv_heads_);
  const int t = blockIdx.x / choosers, c = blockIdx.x % choosers, end = spans[3 * t + 2];
  const int64_t whole = chosen_ * page_;
  const int room = whole < wide ? static_cast<int>(whole) : wide, each = wide / max(1, room);
  const int begin = blockIdx.x % each * room;
  int* const own = chosen_spans + 3 * static_cast<size_t>(blockIdx.x);
  if (end == 0) {
    if (threadIdx.x < 3) own[threadIdx.x] = 0;
    return;
  }
  const float* const score = scores + static_cast<size_t>(blockIdx.x) * pages;
  const int* const list = lists + static_cast<size_t>(spans[3 * t]) * capacity;
  int* const cells = out + static_cast<size_t>(blockIdx.x / each) * wide + begin;
  const int last = (end - 1) / page, head = c * kv_heads / choosers;
  const int wanted = chosen_ - 1 < last ? static_cast<int>(chosen_ - 1) : last;
  const auto key = [&](int p) { return key_of(score[p], p); };
  const uint64_t edge = edge_of(workspace, last, wanted, key);
  int found = 0;
  for (int first = 0; first <= last; first += blockDim.x) {
    const int p = first + threadIdx.x;
    const bool takes = p == last || (p < last && key(p) >= edge);
    const int place = place_of(workspace, takes, found);
    for (int i = 0; takes && i < min(page, end - p * page); ++i)
      cells[place * page + i] = list[p * page + i] * kv_heads + head;
  }
  if (threadIdx.x == 0) {
    own[0] = blockIdx.x / each;
    own[1] = begin;
    own[2] = begin + (found - 1) * page + end - last * page;
  }
}
