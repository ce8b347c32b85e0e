// Starts the kernels of src/cortext_cuda/ctc.cu on a CPU, with pointers to their arguments as
// CUDA takes them.
#include "cuda_on_cpu.hpp"

#include "ctc.cu"

namespace {
template <class... Arguments, size_t... I>
void call(void (*kernel)(Arguments...), void** given, std::index_sequence<I...>) {
    kernel(*(Arguments*)given[I]...);
}

template <class... Arguments>
int start(void (*kernel)(Arguments...), int x, int y, int threads, void** given) {
    try {
        on_cpu::run({x, y, 1}, threads,
                    [&] { call(kernel, given, std::index_sequence_for<Arguments...>()); });
    } catch (const std::exception&) {
        return 1;
    }
    return 0;
}
}  // namespace

extern "C" int start_ctc_rows(int x, int y, int threads, void** given) {
    return start(ctc_rows, x, y, threads, given);
}
extern "C" int start_ctc_paths(int x, int y, int threads, void** given) {
    return start(ctc_paths, x, y, threads, given);
}
extern "C" int start_ctc_gradient(int x, int y, int threads, void** given) {
    return start(ctc_gradient, x, y, threads, given);
}
