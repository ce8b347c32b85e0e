// Connectionist temporal classification (Graves et al., ICML 2006) on a GPU, with lengths on the
// GPU.
//
// B trials, P frames, V tokens, U labels at most, S = 2 U + 1 states: a blank before, between and
// after the labels. Sums over paths are kept in float64, their exponentials are float32. Each
// number has one thread that adds it up in a fixed order, so that a run gives the same bits again.
//
// Logits are not normalised here: the rows' log-sums are taken off the loss at its end, and cancel
// in the gradient's posteriors.

#define NONE (-1.0 / 0.0)
#define AHEAD 4  // frames whose logits are on their way while as many are worked on
#define EVERY 0xffffffffu

__device__ int bounded(long long value, int most) {
    return value < 0 ? 0 : value > most ? most : (int)value;
}

// log(exp(a) + exp(b) + exp(c)); -inf for three times -inf.
__device__ double log_sum(double a, double b, double c) {
    double most = fmax(a, fmax(b, c));
    if (most == NONE) return NONE;
    return most + (double)logf(expf((float)(a - most)) + expf((float)(b - most)) +
                               expf((float)(c - most)));
}

// The log of the sum of the exponentials of each row of logits [B, P, V], float [B, P]; a warp a
// row.
extern "C" __global__ void ctc_rows(const float* logits, const long long* n_frames, float* log_sums,
                                    int n_rows, int P, int V) {
    int lane = threadIdx.x % 32;
    int row = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
    if (row >= n_rows || row % P >= n_frames[row / P]) return;
    const float* x = logits + (long long)row * V;
    float most = (float)NONE, total = 0.0f;
    for (int v = lane; v < V; v += 32) most = fmaxf(most, x[v]);
    for (int other = 16; other; other /= 2) most = fmaxf(most, __shfl_xor_sync(EVERY, most, other));
    for (int v = lane; v < V; v += 32) total += expf(x[v] - most);
    for (int other = 16; other; other /= 2) total += __shfl_xor_sync(EVERY, total, other);
    if (lane == 0) log_sums[row] = most + logf(total);
}

// The sum over all paths; a block a trial, a thread a state. Blocks of the second row of the grid
// go backwards in time and states, at the same time. `before` is what reaches each frame and state,
// [B, P, S]: with the frame's own logit forwards, without it backwards, so that the two sums add up
// to all paths through a state. Both are null where no gradient is wanted.
extern "C" __global__ void __launch_bounds__(1024)
    ctc_paths(const float* logits, const long long* labels, const long long* n_frames,
              const long long* n_labels, const float* log_sums, double* forwards, double* backwards,
              int* links, double* of_paths, float* losses, int P, int V, int U, int blank) {
    extern __shared__ double shared[];
    int b = blockIdx.x, s = threadIdx.x, size = blockDim.x + 2;
    bool back = blockIdx.y == 1;
    int n = bounded(n_frames[b], P), n_own = bounded(n_labels[b], U), n_states = 2 * n_own + 1;
    const long long* own_labels = labels + (long long)b * U;
    int place = s / 2;  // of this state's label, in the order of this block
    bool is_label = s % 2 == 1 && s < n_states;
    long long label = is_label ? own_labels[back ? n_own - 1 - place : place] : blank;
    bool known = label >= 0 && label < V;
    bool skips = is_label && place > 0 && label != own_labels[back ? n_own - place : place - 1];

    int state = back ? n_states - 1 - s : s;
    double* kept = back ? backwards : forwards;
    if (kept) kept += (long long)b * P * (2 * U + 1) + state;
    const float* x = logits + (long long)b * P * V + (known ? label : blank);
    float now[AHEAD], coming[AHEAD];
#pragma unroll
    for (int k = 0; k < AHEAD; k++)
        coming[k] = k < n ? x[(long long)(back ? n - 1 - k : k) * V] : 0.0f;

    double reached = NONE;
    double* last = shared;
    double* next = shared + size;
    if (s < 2) last[s] = next[s] = NONE;  // before the first state
    for (int first = 0; first < n; first += AHEAD) {
#pragma unroll
        for (int k = 0; k < AHEAD; k++) {
            int frame = first + AHEAD + k;
            now[k] = coming[k];
            coming[k] = frame < n ? x[(long long)(back ? n - 1 - frame : frame) * V] : 0.0f;
        }
#pragma unroll
        for (int k = 0; k < AHEAD; k++) {
            int frame = first + k;
            if (frame >= n) break;
            if (s < n_states) {
                double before = s < 2 ? 0.0 : NONE;
                if (frame > 0) before = log_sum(reached, last[s + 1], skips ? last[s] : NONE);
                reached = before + now[k];
                if (kept)
                    kept[(long long)(back ? n - 1 - frame : frame) * (2 * U + 1)] =
                        back ? before : reached;
            }
            next[s + 2] = reached;
            double* spare = last;
            last = next;
            next = spare;
            __syncthreads();
        }
    }
    if (back) {
        // The next place of the same label, plus one, and whether this is the first: see
        // ctc_gradient.
        for (int u = s; u < n_own; u += blockDim.x) {
            int following = 0, is_first = 1;
            for (int other = 0; other < u; other++) is_first &= own_labels[other] != own_labels[u];
            for (int other = n_own - 1; other > u; other--)
                if (own_labels[other] == own_labels[u]) following = other + 1;
            links[(long long)b * U + u] = 2 * following + is_first;
        }
        return;
    }
    double total = 0.0;
    for (int frame = s; frame < n; frame += blockDim.x) total += log_sums[(long long)b * P + frame];
    next[s + 2] = total;
    __syncthreads();
    if (s < 32) {
        for (int other = s + 32; other < blockDim.x; other += 32) total += next[other + 2];
        for (int other = 16; other; other /= 2) total += __shfl_xor_sync(EVERY, total, other);
    }
    if (s == 0) {
        double all = n_own == 0 ? 0.0 : NONE;  // without frames
        if (n > 0) all = log_sum(last[n_states + 1], n_own ? last[n_states] : NONE, NONE);
        of_paths[b] = all;
        losses[b] = (float)(total - all);
    }
    __syncthreads();
    if (!known) of_paths[b] = losses[b] = (float)(NONE - NONE);  // no such token: NaN
}

// d_losses [B] times the gradient of the losses, [B, P, V]: the softmax less the posteriors. A
// block a frame. The first place of each label adds up all its places.
extern "C" __global__ void ctc_gradient(const float* logits, const long long* labels,
                                        const long long* n_frames, const long long* n_labels,
                                        const float* log_sums, const double* forwards,
                                        const double* backwards, const int* links,
                                        const double* of_paths, const float* d_losses,
                                        float* d_logits, int P, int V, int U, int blank) {
    extern __shared__ double shared[];
    int frame = blockIdx.x, b = blockIdx.y;
    long long row = (long long)b * P + frame;
    int n = bounded(n_frames[b], P), n_own = bounded(n_labels[b], U);
    const float* x = logits + row * V;
    float* d_x = d_logits + row * V;
    if (frame >= n) {
        for (int v = threadIdx.x; v < V; v += blockDim.x) d_x[v] = 0.0f;
        return;
    }
    const double* to = forwards + row * (2 * U + 1);
    const double* from = backwards + row * (2 * U + 1);
    double all = of_paths[b];
    // NaN, as torch has it, for a label that does not fit into its frames.
    float d_loss = all > NONE ? d_losses[b] : (float)(NONE - NONE);
    float log_total = log_sums[row];
    for (int v = threadIdx.x; v < V; v += blockDim.x) d_x[v] = d_loss * expf(x[v] - log_total);

    float blanks = 0.0f;
    for (int u = threadIdx.x; u <= n_own; u += blockDim.x)
        blanks += expf((float)(to[2 * u] + from[2 * u] - all));
    for (int other = 16; other; other /= 2) blanks += __shfl_xor_sync(EVERY, blanks, other);
    if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = blanks;
    __syncthreads();
    if (threadIdx.x == 0) {
        for (int warp = 1; warp < blockDim.x / 32; warp++) blanks += (float)shared[warp];
        d_x[blank] = d_loss * (expf(x[blank] - log_total) - blanks);
    }
    for (int u = threadIdx.x; u < n_own; u += blockDim.x) {
        int link = links[(long long)b * U + u];
        long long label = labels[(long long)b * U + u];
        if (link % 2 == 0 || label < 0 || label >= V) continue;
        float posterior = expf((float)(to[2 * u + 1] + from[2 * u + 1] - all));
        for (int place = link / 2 - 1; place >= 0; place = links[(long long)b * U + place] / 2 - 1)
            posterior += expf((float)(to[2 * place + 1] + from[2 * place + 1] - all));
        d_x[label] = d_loss * (expf(x[label] - log_total) - posterior);
    }
}
