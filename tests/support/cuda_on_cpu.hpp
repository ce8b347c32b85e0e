// Runs the threads of CUDA kernels on a CPU: one after the other, each until it waits for the
// others.
//
// Include it before a kernel's source. `run(grid, threads, shared_bytes, body)` calls `body`, which
// calls the kernel, for each thread of each block. It throws if the threads wait for each other for
// ever.

#include <ucontext.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <memory>
#include <stdexcept>
#include <vector>

#define __global__
#define __device__ static
#define __launch_bounds__(threads)
#define __shared__  // dynamic shared memory only: `extern __shared__ double shared[]`

using std::max;
using std::min;

struct Three {
    int x = 0, y = 0, z = 0;
};
static Three threadIdx, blockIdx, blockDim, gridDim;
alignas(16) double shared[1 << 15];

namespace on_cpu {
enum State { running, at_block, at_warp, ended };
struct Thread {
    ucontext_t context;
    State state = running;
    alignas(8) char given[8];
};
static std::vector<Thread> threads;
static std::vector<std::unique_ptr<char[]>> stacks;  // of all blocks, one after the other
constexpr size_t STACK = 1 << 15;
static ucontext_t scheduler;
static int current;
static std::function<void()> work;

inline void wait(State state) {
    int own = current;
    threads[own].state = state;
    swapcontext(&threads[own].context, &scheduler);
}

inline void start() {
    work();
    threads[current].state = ended;
    swapcontext(&threads[current].context, &scheduler);
}

// Lets the threads `first` to `end - 1` go on if all of them wait for each other.
inline bool release(size_t first, size_t end, State waiting) {
    bool any = false;
    for (size_t i = first; i < end; i++) {
        if (threads[i].state != waiting && threads[i].state != ended) return false;
        any |= threads[i].state == waiting;
    }
    for (size_t i = first; i < end; i++)
        if (threads[i].state == waiting) threads[i].state = running;
    return any;
}

inline void run_block(int n_threads) {
    threads.assign(n_threads, Thread());
    while (stacks.size() < threads.size()) stacks.emplace_back(new char[STACK]);
    for (size_t i = 0; i < threads.size(); i++) {
        ucontext_t& context = threads[i].context;
        getcontext(&context);
        context.uc_stack.ss_sp = stacks[i].get();
        context.uc_stack.ss_size = STACK;
        makecontext(&context, start, 0);
    }
    for (;;) {
        bool any = false;
        for (current = 0; current < n_threads; current++) {
            if (threads[current].state != running) continue;
            threadIdx.x = current;
            swapcontext(&scheduler, &threads[current].context);
            any = true;
        }
        for (size_t first = 0; first < threads.size(); first += 32)
            any |= release(first, std::min(first + 32, threads.size()), at_warp);
        any |= release(0, threads.size(), at_block);
        if (!any) break;
    }
    for (auto& thread : threads)
        if (thread.state != ended) throw std::runtime_error("threads wait for each other");
}

inline void run(Three grid, int n_threads, const std::function<void()>& body) {
    gridDim = grid;
    blockDim = {n_threads, 1, 1};
    work = body;
    for (blockIdx.x = 0; blockIdx.x < grid.x; blockIdx.x++)
        for (blockIdx.y = 0; blockIdx.y < grid.y; blockIdx.y++) {
            std::fill_n(shared, sizeof shared / sizeof *shared, std::nan(""));
            run_block(n_threads);
        }
}
}  // namespace on_cpu

static void __syncthreads() { on_cpu::wait(on_cpu::at_block); }

template <class T>
T __shfl_xor_sync(unsigned, T value, int other) {
    int own = on_cpu::current;
    std::memcpy(on_cpu::threads[own].given, &value, sizeof value);
    on_cpu::wait(on_cpu::at_warp);
    std::memcpy(&value, on_cpu::threads[own ^ other].given, sizeof value);
    on_cpu::wait(on_cpu::at_warp);
    return value;
}
