/* The part of ggml's API that this folder needs, since its libraries come without headers, and
 * helpers: a graph of one or a few ops over our arrays, computed by a persistent thread pool of
 * OMP_NUM_THREADS threads. ASSAY_FORMAT, the weight's format, is a ggml_type. */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

enum { F32 = 0, F16 = 1, MOST_NODES = 16 };
typedef struct ggml_tensor *tensor;
typedef struct ggml_context *context;
typedef struct ggml_backend_buffer *buffer;
struct ggml_init_params { size_t size; void *memory; bool no_alloc; };
struct threads { bool cpus[512]; int count, priority; uint32_t poll; bool strict, paused; };

context ggml_init(struct ggml_init_params);
void ggml_free(context);
tensor ggml_new_tensor_2d(context, int type, int64_t, int64_t);
tensor ggml_new_tensor_3d(context, int type, int64_t, int64_t, int64_t);
tensor ggml_permute(context, tensor, int, int, int, int);
tensor ggml_add(context, tensor, tensor);
tensor ggml_mul(context, tensor, tensor);
tensor ggml_scale(context, tensor, float);
tensor ggml_tanh(context, tensor);
tensor ggml_relu(context, tensor);
tensor ggml_silu(context, tensor);
tensor ggml_sigmoid(context, tensor);
tensor ggml_softplus(context, tensor);
tensor ggml_gelu(context, tensor);
tensor ggml_gelu_erf(context, tensor);
tensor ggml_swiglu_split(context, tensor, tensor);
tensor ggml_soft_max(context, tensor);
tensor ggml_rms_norm(context, tensor, float eps);
tensor ggml_norm(context, tensor, float eps);
tensor ggml_mul_mat(context, tensor, tensor);
tensor ggml_flash_attn_ext(context, tensor q, tensor k, tensor v, tensor mask, float scale,
                           float max_bias, float softcap);
void ggml_flash_attn_ext_add_sinks(tensor, tensor);
size_t ggml_nbytes(tensor);
struct ggml_cgraph *ggml_new_graph_custom(context, size_t nodes, bool grads);
void ggml_build_forward_expand(struct ggml_cgraph *, tensor);
void *ggml_backend_cpu_init(void);
void ggml_backend_cpu_set_n_threads(void *, int);
void ggml_backend_cpu_set_threadpool(void *, void *);
int ggml_backend_graph_compute(void *, struct ggml_cgraph *);
buffer ggml_backend_cpu_buffer_from_ptr(void *, size_t);
void ggml_backend_buffer_free(buffer);
int ggml_backend_tensor_alloc(buffer, tensor, void *);
void ggml_threadpool_params_init(struct threads *, int);
void *ggml_threadpool_new(struct threads *);

static void *cpu;
static context now;
static buffer held[MOST_NODES];
static int n_held;
static char memory[1 << 20];

static inline void begin(void) {
  if (!cpu) {
    const char *said = getenv("OMP_NUM_THREADS");
    struct threads threads;
    int count = said ? atoi(said) : 1;
    ggml_threadpool_params_init(&threads, count);
    if (threads.count != count) {
      fprintf(stderr, "this ggml lays out the parameters of its threads in another way\n");
      exit(1);
    }
    cpu = ggml_backend_cpu_init();
    ggml_backend_cpu_set_n_threads(cpu, count);
    if (count > 1) ggml_backend_cpu_set_threadpool(cpu, ggml_threadpool_new(&threads));
  }
  now = ggml_init((struct ggml_init_params){sizeof memory, memory, true});
  n_held = 0;
}

/* Binds a tensor's data to an array. */
static inline tensor at(tensor t, const void *array) {
  buffer b = held[n_held++] = ggml_backend_cpu_buffer_from_ptr((void *)array, ggml_nbytes(t));
  ggml_backend_tensor_alloc(b, t, (void *)array);
  return t;
}

/* A float32 tensor [count, width] over x. */
static inline tensor rows(const float *x, int64_t count, int64_t width) {
  return at(ggml_new_tensor_2d(now, F32, width, count), x);
}

/* Computes the graph of a tensor whose data is bound. */
static inline void run(tensor result) {
  struct ggml_cgraph *graph = ggml_new_graph_custom(now, MOST_NODES, false);
  ggml_build_forward_expand(graph, result);
  if (ggml_backend_graph_compute(cpu, graph)) {
    fprintf(stderr, "ggml cannot compute it\n");
    exit(1);
  }
  while (n_held) ggml_backend_buffer_free(held[--n_held]);
  ggml_free(now);
}
