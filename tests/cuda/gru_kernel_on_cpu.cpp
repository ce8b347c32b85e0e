// Runs gru_kernel.cu on a CPU: each of its threads is a fiber, and a thread that waits lets the
// others run. -DKERNEL="<path of gru_kernel.cu>", -DUNITS and -DKEPT are given by the compiler.

#include <setjmp.h>
#include <ucontext.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <vector>

#define EMULATED
#define __device__
#define __global__
#define __forceinline__ inline
#define __launch_bounds__(...)

constexpr int BLOCK = 256, LANES = 32;
constexpr size_t STACK = 32768, GUARD = 4096;

struct Barrier {
  int arrived = 0;
  long turn = 0;
};
struct Registers {
  unsigned a[4], b[2];
};
struct Warp {
  Barrier barrier;
  Registers given[2][LANES];  // of this turn and the one before, which others may still read
};
struct Block {
  Barrier barrier;
  std::vector<char> shared;
  Warp warps[BLOCK / LANES];
};
struct Fiber {
  ucontext_t first;
  jmp_buf here;
  unsigned block, thread;
  long turn = 0;
  bool begun = false, done = false;
};

static std::vector<Block> blocks;
static std::vector<Fiber> fibers;
static Fiber* now;
static jmp_buf scheduler;
static std::function<void()> kernel;

struct Thread {
  operator unsigned() const { return now->thread; }
};
struct BlockNumber {
  operator unsigned() const { return now->block; }
};
static struct { Thread x; } threadIdx;
static struct { BlockNumber x; } blockIdx;
static struct { unsigned x; } gridDim;

// Jumps between stacks: `swapcontext` alone asks the system each time.
static void let_others_run() {
  if (!_setjmp(now->here)) _longjmp(scheduler, 1);
}

static void resume() {
  if (_setjmp(scheduler)) return;
  if (now->begun) _longjmp(now->here, 1);
  now->begun = true;
  setcontext(&now->first);
}

static void meet(Barrier& barrier, int threads) {
  const long mine = barrier.turn;
  if (++barrier.arrived == threads) {
    barrier.arrived = 0;
    barrier.turn++;
  }
  while (barrier.turn == mine) let_others_run();
}

// Give registers to the warp, and return those of all its lanes.
static const Registers* exchange(const Registers& own) {
  Warp& warp = blocks[now->block].warps[now->thread / LANES];
  Registers* given = warp.given[now->turn++ % 2];
  given[now->thread % LANES] = own;
  meet(warp.barrier, LANES);
  return given;
}

struct float2 {
  float x, y;
};
struct uint2 {
  unsigned x, y;
};
struct uint4 {
  unsigned x, y, z, w;
};
inline float2 make_float2(float x, float y) { return {x, y}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
inline float __expf(float x) { return std::exp(x); }
inline float __fdividef(float a, float b) { return a / b; }
inline void __syncthreads() { meet(blocks[now->block].barrier, BLOCK); }
inline void __syncwarp() {}
inline float* shared_memory() { return (float*)blocks[now->block].shared.data(); }

inline unsigned __shfl_sync(unsigned, unsigned value, int lane) {
  return exchange({{value}, {}})[lane].a[0];
}

inline bool __any_sync(unsigned, bool holds) {
  const Registers* given = exchange({{holds}, {}});
  bool any = false;
  for (int lane = 0; lane < LANES; lane++) any |= given[lane].a[0] != 0;
  return any;
}

static float half(unsigned bits) {
  const unsigned short low = bits;
  _Float16 value;
  memcpy(&value, &low, 2);
  return value;
}

inline float2 exact(unsigned both) { return {half(both), half(both >> 16)}; }

inline unsigned rounded(float low, float high) {
  const _Float16 both[2] = {(_Float16)low, (_Float16)high};
  unsigned bits;
  memcpy(&bits, both, 4);
  return bits;
}

struct Words;
Words load(const Words* from);
void multiply(float (&c)[4], const Words& a, unsigned b0, unsigned b1);

inline unsigned load(const unsigned* from) {
  let_others_run();
  return *from;
}

inline void fetch_to_cache(const void*) {}

inline void store(unsigned* to, unsigned x) { *to = x; }

#include KERNEL

Words load(const Words* from) {
  let_others_run();
  return *from;
}

// PTX ISA, "Matrix Fragments for mma.m16n8k16 with floating point type".
void multiply(float (&c)[4], const Words& own, unsigned b0, unsigned b1) {
  const Registers* given = exchange({{own.w[0], own.w[1], own.w[2], own.w[3]}, {b0, b1}});
  const int lane = now->thread % LANES;
  for (int i = 0; i < 4; i++) {
    const int row = lane / 4 + i / 2 * 8, column = lane % 4 * 2 + i % 2;
    for (int k = 0; k < 16; k++) {
      const unsigned a = given[row % 8 * 4 + k % 8 / 2].a[row / 8 + k / 8 * 2];
      const unsigned b = given[column * 4 + k % 8 / 2].b[k / 8];
      c[i] += half(a >> k % 2 * 16) * half(b >> k % 2 * 16);
    }
  }
}

static void run_fiber() {
  kernel();
  now->done = true;
  let_others_run();
}

// Returns whether no block has written beyond its shared memory.
static bool run(int n_blocks, int shared_bytes, std::function<void()> body) {
  kernel = body;
  blocks.assign(n_blocks, Block());
  for (Block& block : blocks) block.shared.assign(shared_bytes + GUARD, (char)0xaa);
  gridDim.x = n_blocks;
  fibers = std::vector<Fiber>(n_blocks * BLOCK);
  std::vector<char> stacks(STACK * fibers.size());
  for (size_t i = 0; i < fibers.size(); i++) {
    Fiber& fiber = fibers[i];
    fiber.block = i / BLOCK;
    fiber.thread = i % BLOCK;
    getcontext(&fiber.first);
    fiber.first.uc_stack.ss_sp = stacks.data() + STACK * i;
    fiber.first.uc_stack.ss_size = STACK;
    makecontext(&fiber.first, run_fiber, 0);
  }
  for (bool any = true; any;) {
    any = false;
    for (Fiber& fiber : fibers) {
      if (fiber.done) continue;
      any = true;
      now = &fiber;
      resume();
    }
  }
  for (const Block& block : blocks)
    for (size_t i = shared_bytes; i < block.shared.size(); i++)
      if (block.shared[i] != (char)0xaa) return false;
  return true;
}

extern "C" bool run_forward(int n_blocks, int shared_bytes, const u16* input, const int* starts,
                            const u16* first, const u16* w_hh, const float* b_hh, u16* h, u16* before,
                            uint4* kept, u16* last, int n_frames) {
  return run(n_blocks, shared_bytes,
             [=] { forward(input, starts, first, w_hh, b_hh, h, before, kept, last, n_frames); });
}

extern "C" bool run_backward(int n_blocks, int shared_bytes, const u16* d_h, const int* starts,
                             const u16* before, const uint4* kept, const u16* w, u16* d_gates,
                             float* d_state, u16* sums, int n_frames) {
  return run(n_blocks, shared_bytes,
             [=] { backward(d_h, starts, before, kept, w, d_gates, d_state, sums, n_frames); });
}
