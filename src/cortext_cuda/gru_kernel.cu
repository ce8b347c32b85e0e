// The recurrence of a GRU layer in training: all frames in one kernel, forwards and backwards.
//
// gru_kernel.py starts it and defines UNITS (D), KEPT_FORWARD and KEPT_BACKWARD. A group of N_BLOCKS
// blocks runs TRIALS trials. Each block has some of the units, and keeps the recurrent weights of
// their gates on the chip: KEPT tiles of each warp in registers, the others in shared memory. Blocks
// exchange 12 kB in each frame through the L2 cache, so all blocks of a group must run at once.
// There is no barrier between them: who reads can see from the word itself whether it has come.
//
// N are the real frames of all trials, one trial after the other; those of trial b are the rows from
// starts_B[b] to starts_B[b + 1]. G are the three gates, in torch's order: r, z, n. A word holds two
// float16, of two neighbouring units.

typedef unsigned int u32;
typedef unsigned short u16;

constexpr int D = UNITS;
constexpr int TRIALS = 8;
constexpr int N_BLOCKS = 16;
constexpr int N_WARPS = 8;
constexpr int THREADS = 32 * N_WARPS;
constexpr int OWN = D / N_BLOCKS;        // units of a block
constexpr int TILES = OWN / 16;          // tensor cores multiply tiles of 16 x 16
constexpr int ITEMS = TRIALS * OWN / 2;  // threads that have a word of the states each
constexpr u32 EMPTY = 0xffffffffu;       // two NaNs; rounding gives another NaN, 0x7fff
constexpr int AHEAD = 4;                 // frames; memory answers later than a frame lasts
constexpr float SCALE = 64.0f;          // of gradients within the kernel, which are small

struct alignas(16) Words {
  u32 w[4];
};

#ifndef EMULATED  // tests define what follows for a CPU

__device__ __forceinline__ float* shared_memory() {
  extern __shared__ float dynamic_memory[];
  return dynamic_memory;
}

__device__ __forceinline__ Words load(const Words* from) {
  Words x;
  asm volatile("ld.relaxed.gpu.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(x.w[0]), "=r"(x.w[1]), "=r"(x.w[2]), "=r"(x.w[3])
               : "l"(from)
               : "memory");
  return x;
}

__device__ __forceinline__ u32 load(const u32* from) {
  u32 x;
  asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(x) : "l"(from) : "memory");
  return x;
}

__device__ __forceinline__ void store(u32* to, u32 x) {
  asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(to), "r"(x) : "memory");
}

__device__ __forceinline__ void fetch_to_cache(const void* from) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(from));
}

__device__ __forceinline__ u32 rounded(float low, float high) {
  u32 both;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
  return both;
}

__device__ __forceinline__ float2 exact(u32 both) {
  float2 found;
  asm("{ .reg .f16 low, high;\n"
      "mov.b32 {low, high}, %2; cvt.f32.f16 %0, low; cvt.f32.f16 %1, high; }"
      : "=f"(found.x), "=f"(found.y)
      : "r"(both));
  return found;
}

// c [16 rows, 8 trials] += a [16 rows, 16] b [16, 8 trials]
__device__ __forceinline__ void multiply(float (&c)[4], const Words& a, u32 b0, u32 b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a.w[0]), "r"(a.w[1]), "r"(a.w[2]), "r"(a.w[3]), "r"(b0), "r"(b1));
}

#endif

__device__ __forceinline__ float sigmoid(float x) { return __fdividef(1.0f, 1.0f + __expf(-x)); }

__device__ __forceinline__ float hyperbolic(float x) { return 2.0f * sigmoid(2.0f * x) - 1.0f; }

__device__ __forceinline__ float2 sum_of(float2 a, float2 b) {
  return make_float2(a.x + b.x, a.y + b.y);
}

__device__ __forceinline__ float2 scaled(float2 a, float by) { return make_float2(a.x * by, a.y * by); }

// The tiles of weights of a warp, the first KEPT in registers.
template <int ALL, int KEPT>
struct Weights {
  static constexpr int IN_REGISTERS = KEPT < ALL ? KEPT : ALL;
  static constexpr int SHARED = (ALL - IN_REGISTERS) * THREADS;  // Words of all warps
  Words own[IN_REGISTERS];
  Words* others;

  __device__ __forceinline__ explicit Weights(Words* shared)
      : others(shared + threadIdx.x / 32 * (SHARED / N_WARPS) + threadIdx.x % 32) {}

  __device__ __forceinline__ void put(int tile, u32 a0, u32 a1, u32 a2, u32 a3) {
    (tile < IN_REGISTERS ? own[tile] : others[(tile - IN_REGISTERS) * 32]) = Words{a0, a1, a2, a3};
  }

  __device__ __forceinline__ Words get(int tile) const {
    return tile < IN_REGISTERS ? own[tile] : others[(tile - IN_REGISTERS) * 32];
  }
};

// The trials and units of a thread. Rows g and g + 8 of a tile are neighbouring units, so that a
// thread has both of a word.
struct Place {
  int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  int block = blockIdx.x % N_BLOCKS, group = blockIdx.x / N_BLOCKS;
  int trial0 = group * TRIALS, unit0 = block * OWN;
  bool has_item = threadIdx.x < ITEMS;
  int item = has_item ? threadIdx.x : 0;
  int item_trial = item / (OWN / 2), item_unit = item % (OWN / 2) * 2;
};

// Wait for 32 columns of a row CHUNKS times. A thread takes 8 columns of a row at once.
template <int CHUNKS>
__device__ __forceinline__ void await_states(Words (&x)[CHUNKS], const u16* row, bool empty_before) {
  const Words* from = (const Words*)row;
#pragma unroll
  for (int chunk = 0; chunk < CHUNKS; chunk++) x[chunk] = load(from + 4 * chunk);
  for (bool missing = empty_before; __any_sync(~0u, missing);) {
    missing = false;
#pragma unroll
    for (int chunk = 0; chunk < CHUNKS; chunk++) {
      const u32* w = x[chunk].w;
      if (empty_before && (w[0] == EMPTY || w[1] == EMPTY || w[2] == EMPTY || w[3] == EMPTY)) {
        missing = true;
        x[chunk] = load(from + 4 * chunk);
      }
    }
  }
}

// Sums of each warp's columns, [warp, trial, WIDTH]; with this width no bank is met twice.
constexpr int WIDTH = 3 * OWN + 4, PARTS = N_WARPS * TRIALS * WIDTH;

__device__ __forceinline__ float2 added_up(float2 sum, const float* parts) {
#pragma unroll
  for (int warp = 0; warp < N_WARPS; warp++)
    sum = sum_of(sum, *(const float2*)(parts + warp * TRIALS * WIDTH));
  return sum;
}

// Input: input_NG, the product with the input weights and their bias; first_BD, the first state;
// w_hh [G, D]; b_hh [G]. Output: h_ND, EMPTY before; before_ND, the state before each frame;
// kept_N4, for each two units r, z, n, and what the state adds to n before r; last_BD. first_BD and
// last_BD have room for a multiple of TRIALS.
extern "C" __global__ void __launch_bounds__(THREADS, 1)
    forward(const u16* input_NG, const int* starts_B, const u16* first_BD, const u16* w_hh,
            const float* b_hh, u16* h_ND, u16* before_ND, uint4* kept_N4, u16* last_BD,
            int n_frames) {
  constexpr int CHUNKS = D / N_WARPS / 32, ROWS = 3 * TILES;
  const Place at;
  float* parts = shared_memory();
  Weights<2 * CHUNKS * ROWS, KEPT_FORWARD> weights((Words*)(parts + 2 * PARTS));
  const int column0 = at.warp * (D / N_WARPS) + 8 * (at.lane % 4);
#pragma unroll
  for (int i = 0; i < CHUNKS * ROWS; i++) {
    const int gate = i % ROWS / TILES, unit = at.unit0 + i % TILES * 16 + at.lane / 4 * 2;
    const u16* from = w_hh + (gate * D + unit) * D + column0 + i / ROWS * 32;
    const Words a = *(const Words*)from, b = *(const Words*)(from + D);
    weights.put(2 * i, a.w[0], b.w[0], a.w[1], b.w[1]);
    weights.put(2 * i + 1, a.w[2], b.w[2], a.w[3], b.w[3]);
  }

  // The row whose state this thread multiplies, and the word that it computes.
  const int read_trial = at.trial0 + at.lane / 4, read_start = starts_B[read_trial];
  const int n_read = starts_B[read_trial + 1] - read_start;
  const int start = starts_B[at.trial0 + at.item_trial];
  const int n_own = at.has_item ? starts_B[at.trial0 + at.item_trial + 1] - start : 0;
  const int unit = at.unit0 + at.item_unit, state = (at.trial0 + at.item_trial) * D + unit;
  const float2 bias_r = *(const float2*)(b_hh + unit), bias_z = *(const float2*)(b_hh + D + unit);
  const float2 bias_n = *(const float2*)(b_hh + 2 * D + unit);
  u32 word = *(const u32*)(first_BD + state);
  float2 h = exact(word);
  u32 next_r = 0, next_z = 0, next_n = 0;

  for (int frame = -1; frame < n_frames; frame++) {
    const bool real = frame >= 0 && frame < n_own;
    const size_t row = (size_t)start + frame;
    const u32 input_r = next_r, input_z = next_z, input_n = next_n;
    if (frame + 1 < n_own) {
      const u16* input = input_NG + (row + 1) * 3 * D + unit;
      next_r = *(const u32*)input;
      next_z = *(const u32*)(input + D);
      next_n = *(const u32*)(input + 2 * D);
      if (frame + AHEAD < n_own)
        for (int gate = 0; gate < 3; gate++) fetch_to_cache(input + (3 * AHEAD - 3 + gate) * D);
    }
    if (frame < 0) continue;
    __syncwarp();  // trials of other lengths
    Words x[CHUNKS];
    const bool awaited = frame > 0 && frame <= n_read;
    const u16* states = awaited ? h_ND + ((size_t)read_start + frame - 1) * D : first_BD + read_trial * D;
    await_states(x, states + column0, awaited);
    float sum[ROWS][4] = {};
#pragma unroll
    for (int i = 0; i < CHUNKS * ROWS; i++) {
      const u32* w = x[i / ROWS].w;
      multiply(sum[i % ROWS], weights.get(2 * i), w[0], w[1]);
      multiply(sum[i % ROWS], weights.get(2 * i + 1), w[2], w[3]);
    }
    float* part = parts + frame % 2 * PARTS;
    float* to = part + (at.warp * TRIALS + at.lane % 4 * 2) * WIDTH + at.lane / 4 * 2;
#pragma unroll
    for (int i = 0; i < ROWS; i++) {
      *(float2*)(to + 16 * i) = make_float2(sum[i][0], sum[i][2]);
      *(float2*)(to + 16 * i + WIDTH) = make_float2(sum[i][1], sum[i][3]);
    }
    float2 in_r = sum_of(bias_r, exact(input_r)), in_z = sum_of(bias_z, exact(input_z));
    const float2 in_n = exact(input_n);
    __syncthreads();
    if (!real) continue;
    const float* own = part + at.item_trial * WIDTH + at.item_unit;
    in_r = added_up(in_r, own);
    in_z = added_up(in_z, own + OWN);
    const float2 own_n = added_up(bias_n, own + 2 * OWN);
    const float r0 = sigmoid(in_r.x), r1 = sigmoid(in_r.y);
    const float z0 = sigmoid(in_z.x), z1 = sigmoid(in_z.y);
    const float n0 = hyperbolic(in_n.x + r0 * own_n.x), n1 = hyperbolic(in_n.y + r1 * own_n.y);
    h = make_float2(n0 + z0 * (h.x - n0), n1 + z1 * (h.y - n1));
    const u32 before = word;
    word = rounded(h.x, h.y);
    store((u32*)(h_ND + row * D + unit), word);
    *(u32*)(before_ND + row * D + unit) = before;  // nobody waits for this and what follows
    kept_N4[(row * D + unit) / 2] = make_uint4(rounded(r0, r1), rounded(z0, z1), rounded(n0, n1),
                                               rounded(own_n.x, own_n.y));
  }
  if (at.has_item) *(u32*)(last_BD + state) = word;
}

// The sums that a block computes for another one's units, float16 [2, groups, reader, writer, TRIALS,
// OWN]. Frames take turns with the two parts. The last bit of a word tells a new one from the one
// before the last, so one number of two has 9 bits.
constexpr int SUMS = TRIALS * OWN / 2;  // words for one reader by one writer

__device__ __forceinline__ u32* exchanged(u16* sums, int turn, int group, int reader, int writer) {
  const int n_groups = gridDim.x / N_BLOCKS;
  return (u32*)sums + (((turn % 2 * n_groups + group) * N_BLOCKS + reader) * N_BLOCKS + writer) * SUMS;
}

__device__ __forceinline__ u32 mark_of(int turn) { return turn / 2 % 2 ? 0u : 1u; }

__device__ __forceinline__ float2 await_sum(u16* sums, int turn, const Place& at) {
  const u32* from = exchanged(sums, turn, at.group, at.block, 0) + at.item;
  const u32 mark = mark_of(turn);
  u32 word[N_BLOCKS];
#pragma unroll
  for (int i = 0; i < N_BLOCKS; i++) word[i] = load(from + i * SUMS);
  for (bool missing = true; missing;) {
    missing = false;
#pragma unroll
    for (int i = 0; i < N_BLOCKS; i++) {
      if ((word[i] & 1) != mark) {
        missing = true;
        word[i] = load(from + i * SUMS);
      }
    }
  }
  float2 sum = exact(word[0] & ~1u);
#pragma unroll
  for (int i = 1; i < N_BLOCKS; i++) sum = sum_of(sum, exact(word[i] & ~1u));
  return sum;
}

// Input: d_h_ND; before_ND and kept_N4 of the forward pass; w_DG, the recurrent weights transposed.
// Output: d_gates_N4, [N, 4 D], gradients of what the state adds to n, to r and to z, and of what
// the input adds to n. d_state_BD: gradient of the last state, replaced by that of the first. sums:
// zeros, for `exchanged`.
extern "C" __global__ void __launch_bounds__(THREADS, 1)
    backward(const u16* d_h_ND, const int* starts_B, const u16* before_ND, const uint4* kept_N4,
             const u16* w_DG, u16* d_gates_N4, float* d_state_BD, u16* sums, int n_frames) {
  constexpr int STEPS = 3 * TILES, ROWS = D / 16 / N_WARPS;
  const Place at;
  u16* gates = (u16*)shared_memory();  // gradients of two frames, [2, TRIALS, 3 OWN]
  Weights<STEPS * ROWS, KEPT_BACKWARD> weights((Words*)(gates + 2 * TRIALS * 3 * OWN));
#pragma unroll
  for (int i = 0; i < STEPS * ROWS; i++) {
    const int step = i / ROWS, unit = (at.warp * ROWS + i % ROWS) * 16 + at.lane / 4 * 2;
    const u16* from = w_DG + unit * 3 * D + step / TILES * D + at.unit0 + step % TILES * 16;
    const uint2 a = *(const uint2*)(from + 4 * (at.lane % 4));
    const uint2 b = *(const uint2*)(from + 3 * D + 4 * (at.lane % 4));
    weights.put(i, a.x, b.x, a.y, b.y);
  }

  const int start = starts_B[at.trial0 + at.item_trial];
  const int n_own = at.has_item ? starts_B[at.trial0 + at.item_trial + 1] - start : 0;
  const int unit = at.unit0 + at.item_unit;
  float2* d_state = (float2*)(d_state_BD + (at.trial0 + at.item_trial) * D + unit);
  float2 through = scaled(*d_state, SCALE);  // the part of a gradient that is not multiplied
  u32 next_d = 0, next_before = 0;
  uint4 next = make_uint4(0, 0, 0, 0);

  for (int turn = -1; turn < n_frames; turn++) {
    const int frame = n_frames - 1 - turn;
    const bool real = turn >= 0 && frame < n_own;
    // How gates follow the state: what is needed when the gradient of the state has come.
    float2 d_h = through, keep = make_float2(1.0f, 1.0f), none = make_float2(0.0f, 0.0f);
    float2 by_r = none, by_z = none, by_n = none, by_own_n = none;
    if (real) {
      const float2 r = exact(next.x), z = exact(next.y), n = exact(next.z), own_n = exact(next.w);
      const float2 before = exact(next_before);
      keep = z;
      by_n = make_float2((1.0f - z.x) * (1.0f - n.x * n.x), (1.0f - z.y) * (1.0f - n.y * n.y));
      by_own_n = make_float2(by_n.x * r.x, by_n.y * r.y);
      by_r = make_float2(by_own_n.x * own_n.x * (1.0f - r.x), by_own_n.y * own_n.y * (1.0f - r.y));
      by_z = make_float2((before.x - n.x) * z.x * (1.0f - z.x), (before.y - n.y) * z.y * (1.0f - z.y));
      d_h = sum_of(d_h, scaled(exact(next_d), SCALE));
    }
    if (frame > 0 && frame - 1 < n_own) {
      const size_t from = ((size_t)start + frame - 1) * D + unit;
      next_d = *(const u32*)(d_h_ND + from);
      next_before = *(const u32*)(before_ND + from);
      next = kept_N4[from / 2];
      if (frame >= AHEAD) {
        const size_t later = from - (size_t)(AHEAD - 1) * D;
        fetch_to_cache(d_h_ND + later);
        fetch_to_cache(before_ND + later);
        fetch_to_cache(kept_N4 + later / 2);
      }
    }
    if (turn < 0) continue;
    u16* box = gates + turn % 2 * TRIALS * 3 * OWN;
    if (at.has_item) {
      if (turn) d_h = sum_of(d_h, await_sum(sums, turn - 1, at));
      u16* to = box + at.item_trial * 3 * OWN + at.item_unit;
      *(u32*)to = rounded(d_h.x * by_r.x, d_h.y * by_r.y);
      *(u32*)(to + OWN) = rounded(d_h.x * by_z.x, d_h.y * by_z.y);
      *(u32*)(to + 2 * OWN) = rounded(d_h.x * by_own_n.x, d_h.y * by_own_n.y);
      through = make_float2(d_h.x * keep.x, d_h.y * keep.y);
    }
    __syncthreads();
    __syncwarp();
    float sum[ROWS][4] = {};
    const u16* column = box + at.lane / 4 * 3 * OWN + 4 * (at.lane % 4);
#pragma unroll
    for (int step = 0; step < STEPS; step++) {
      const uint2 b = *(const uint2*)(column + 16 * step);
#pragma unroll
      for (int i = 0; i < ROWS; i++) multiply(sum[i], weights.get(step * ROWS + i), b.x, b.y);
    }
    const u32 mark = mark_of(turn);
    u32* words = exchanged(sums, turn, at.group, at.warp * (ROWS / TILES), at.block);
    words += at.lane % 4 * OWN + at.lane / 4;
#pragma unroll
    for (int i = 0; i < ROWS; i++) {  // TILES for a reader
      u32* to = words + i / TILES * N_BLOCKS * SUMS + i % TILES * 8;
      store(to, rounded(sum[i][0], sum[i][2]) & ~1u | mark);
      store(to + OWN / 2, rounded(sum[i][1], sum[i][3]) & ~1u | mark);
    }
    if (!real) continue;
    d_h = scaled(d_h, 1.0f / SCALE);  // nobody waits for this and what follows
    u16* to = d_gates_N4 + ((size_t)start + frame) * 4 * D + unit;
    *(u32*)to = rounded(d_h.x * by_own_n.x, d_h.y * by_own_n.y);
    *(u32*)(to + D) = rounded(d_h.x * by_r.x, d_h.y * by_r.y);
    *(u32*)(to + 2 * D) = rounded(d_h.x * by_z.x, d_h.y * by_z.y);
    *(u32*)(to + 3 * D) = rounded(d_h.x * by_n.x, d_h.y * by_n.y);
  }
  if (at.has_item) *d_state = scaled(sum_of(through, await_sum(sums, n_frames - 1, at)), 1.0f / SCALE);
}
