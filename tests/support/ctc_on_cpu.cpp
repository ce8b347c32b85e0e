// The kernels of src/cortext/training/ctc.cu as functions of C, for a CPU.
#include "cuda_on_cpu.hpp"

#include "ctc.cu"

extern "C" int run_ctc(const float* logits, const long long* labels, const long long* n_frames,
                       const long long* n_labels, const float* d_losses, float* log_sums,
                       double* forwards, double* backwards, int* links, double* of_paths,
                       float* losses, float* d_logits, int B, int P, int V, int U, int blank,
                       int threads) {
    try {
        on_cpu::run({(B * P + 3) / 4, 1, 1}, 128,
                    [&] { ctc_rows(logits, n_frames, log_sums, B * P, P, V); });
        on_cpu::run({B, 2, 1}, threads, [&] {
            ctc_paths(logits, labels, n_frames, n_labels, log_sums, forwards, backwards, links,
                      of_paths, losses, P, V, U, blank);
        });
        on_cpu::run({P, B, 1}, 64, [&] {
            ctc_gradient(logits, labels, n_frames, n_labels, log_sums, forwards, backwards, links,
                         of_paths, d_losses, d_logits, P, V, U, blank);
        });
    } catch (const std::exception&) {
        return 1;
    }
    return 0;
}
