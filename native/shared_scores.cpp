#include "shared_scores.hpp"

#include <algorithm>
#include <cmath>
#include <iterator>

namespace cortext {

namespace {

constexpr int kLongest = SharedScores::kLongest;
constexpr std::size_t kChunk = std::size_t{1} << 19;  // 4 MB
constexpr double kTrusted = 1e-16;  // of the sentence that the frames are scaled by
constexpr double kTooMuch = 1e50;   // sums may have been cut off

// The states of a branch in one frame. N is the number of tokens, or 0 if the compiler does not
// know it.
template <int N>
struct States {
    double label[N > 0 ? N : kLongest] = {}, blank[N > 0 ? N : kLongest] = {}, sil = 0.0,
                             silent = 0.0;
};

struct Sum {
    static double join(double a, double b) { return a + b; }
};

struct Max {
    static double join(double a, double b) { return a > b ? a : b; }
};

// One frame of the recursion over the states of a branch; `in` is what enters it.
//     probs: of the labels;  skips: 1 where a label may follow the one before it without blank,
//     else 0 (if REPEATS)
template <class Join, int N, bool REPEATS>
inline void step(States<N>& x, int n, double in, const double* probs, const double* skips,
                 double blank, double sil) {
    const int last = n - 1;
    const double ends = Join::join(x.label[last], x.blank[last]);
    const double silent = Join::join(x.silent, x.sil);
    x.sil = Join::join(silent, ends) * sil;
    x.silent = silent * blank;
    // From the last state to the first: each reads what its neighbours had in the frame before.
    for (int i = last; i > 0; --i) {
        const double skipping = REPEATS ? x.label[i - 1] * skips[i] : x.label[i - 1];
        x.blank[i] = Join::join(x.blank[i], x.label[i]) * blank;
        x.label[i] = Join::join(Join::join(x.label[i], x.blank[i - 1]), skipping) * probs[i];
    }
    x.blank[0] = Join::join(x.blank[0], x.label[0]) * blank;
    x.label[0] = Join::join(x.label[0], in) * probs[0];
}

// Zeroes what is less than `least`, without branches, and scales the maxima; returns the sum of
// what is left.
template <int N>
inline double drop(States<N>& sum, States<N>& max, int n, double least, double max_scale) {
    double left = 0.0;
    auto one = [&](double& s, double& m) {
        const auto keep = static_cast<double>(s >= least);
        s *= keep;
        m *= keep * max_scale;
        left += s;
    };
    for (int i = 0; i < n; ++i) {
        one(sum.label[i], max.label[i]);
        one(sum.blank[i], max.blank[i]);
    }
    one(sum.sil, max.sil);
    one(sum.silent, max.silent);
    return left;
}

// Writes the row of a frame; `direct` is the factor on entering a word without SIL.
template <int N>
inline void store(const States<N>& sum, const States<N>& max, int n, double direct, double* row) {
    for (int i = 0; i < n; ++i) row[i] = max.label[i];
    for (int i = 0; i < n; ++i) row[n + i] = max.blank[i];
    row += 2 * n;
    row[0] = max.sil;
    row[1] = max.silent;
    row[2] = sum.sil + sum.silent + sum.blank[n - 1] * direct;
    row[3] = sum.label[n - 1] * direct;
    row[4] = Max::join(Max::join(max.sil, max.silent), max.blank[n - 1] * direct);
    row[5] = max.label[n - 1] * direct;
}

}  // namespace

double* SharedScores::Rows::reserve(std::size_t n_doubles) {
    while (end_.chunk < chunks_.size() && end_.used + n_doubles > chunks_[end_.chunk].size)
        end_ = {end_.chunk + 1, 0};
    if (end_.chunk == chunks_.size()) {
        const std::size_t size = std::max(n_doubles, kChunk);
        chunks_.push_back({std::unique_ptr<double[]>(new double[size]),
                           size});  // not touched before it is needed
    }
    return chunks_[end_.chunk].doubles.get() + end_.used;
}

SharedScores::SharedScores(const SentenceFrames& frames, const SentenceOptions& options,
                           Workspace& work)
    : frames_(frames),
      options_(options),
      P_(static_cast<int>(frames.P())),
      direct_(options.sil_required ? 0.0 : std::exp(-options.sil_cost)),
      work_(work) {
    work.rows.rewind({0, 0});
    work.in_sum.resize(frames.P() + 1);
    work.in_max.resize(frames.P() + 1);
    work.branches.assign(1, {nullptr, 0, 1.0, nullptr, 0, 0, 0.0});
    work.nodes.assign(1, {0, 0, 1, {0, 0}, {-1, -1, -1}});
    run_start(work.branches[0]);
}

bool SharedScores::score(const std::vector<const Spelling*>& words, const std::uint32_t* spellings,
                         bool lenient, SentencePaths& paths) {
    std::size_t shared = 0;
    while (shared < words.size() && shared + 1 < work_.nodes.size() &&
           work_.nodes[shared + 1].spelling == spellings[shared]) {
        ++shared;
    }
    if (shared + 1 < work_.nodes.size()) {
        const Node& first = work_.nodes[shared + 1];
        work_.rows.rewind(first.rows);
        work_.branches.resize(first.first_branch);
        work_.nodes.resize(shared + 1);
    }
    for (std::size_t word = shared; word < words.size(); ++word)
        push(*words[word], spellings[word]);

    const Node& last = work_.nodes.back();
    double sum = 0.0;
    for (std::size_t i = last.first_branch; i < last.end_branch; ++i)
        sum += work_.branches[i].ended_sum;
    const double trusted = lenient ? 0.0 : kTrusted;
    if (!(sum > trusted * frames_.sum() && sum < kTooMuch)) return false;
    const PathPoint end = best_end();
    const double max = at(branch_at(end.branch), end.t, end.state);
    if (!(max > trusted * frames_.max())) return false;
    paths.score = options_.logadd ? std::log(sum) + frames_.log_sum_scale()
                                  : std::log(max) + frames_.log_max_scale();
    trace(end);
    paths.spans.assign(work_.spans.begin(),
                       work_.spans.begin() + static_cast<std::ptrdiff_t>(words.size()));
    paths.boundaries = 0;
    for (std::size_t word = 0; word < words.size(); ++word) paths.boundaries += work_.direct[word];
    return true;
}

void SharedScores::push(const Spelling& spelling, std::uint32_t number) {
    const Node parent = work_.nodes.back();
    const std::size_t first = work_.branches.size();
    const Rows::Mark rows = work_.rows.mark();
    for (const Pronunciation& pronunciation : spelling) {
        const auto n_tokens = static_cast<int>(pronunciation.tokens.size());
        const double weight = std::exp(options_.acoustic_scale * pronunciation.log_weight);
        Branch branch{pronunciation.tokens.data(), n_tokens, weight, nullptr, P_, 0, 0.0};
        if (enter(parent, branch)) {
            switch (n_tokens) {
                case 1: run<1>(branch); break;
                case 2: run<2>(branch); break;
                case 3: run<3>(branch); break;
                case 4: run<4>(branch); break;
                case 5: run<5>(branch); break;
                case 6: run<6>(branch); break;
                case 7: run<7>(branch); break;
                case 8: run<8>(branch); break;
                default: run<0>(branch);
            }
        }
        work_.branches.push_back(branch);
    }
    work_.nodes.push_back({number, first, work_.branches.size(), rows, {-1, -1, -1}});
}

// Finds what enters a word from the words before it, frame by frame, and in which frames. False if
// nothing does.
bool SharedScores::enter(const Node& parent, Branch& branch) {
    int low = P_, high = 0;
    const bool is_first = parent.first_branch == 0;
    for (std::size_t i = parent.first_branch; i < parent.end_branch; ++i) {
        low = std::min(low, work_.branches[i].low + 1);
        high = std::max(high, work_.branches[i].high + 1);
    }
    if (is_first) low = 0;
    high = std::min(high, P_);
    if (low >= high) return false;
    double* sum = work_.in_sum.data();
    double* max = work_.in_max.data();
    std::fill(sum + low, sum + high, 0.0);
    std::fill(max + low, max + high, 0.0);
    if (is_first) sum[0] = max[0] = branch.weight;
    for (std::size_t i = parent.first_branch; i < parent.end_branch; ++i) {
        const Branch& from = work_.branches[i];
        if (from.low >= from.high) continue;
        const double labels = from.last_token() == branch.tokens[0] ? 0.0 : 1.0;
        const int end = std::min(from.high, high - 1);
        const double* x = row(from, from.low);
        for (int t = from.low; t < end; ++t, x += from.stride()) {
            sum[t + 1] += (x[from.open_sum()] + labels * x[from.label_sum()]) * branch.weight;
            const double from_max = Max::join(x[from.open_max()], labels * x[from.label_max()]);
            max[t + 1] = Max::join(max[t + 1], from_max * branch.weight);
        }
    }
    // What enters in frame t was there in the frame before.
    auto negligible = [&](int t) {
        return t > 0 && sum[t] < frames_.least(static_cast<std::size_t>(t - 1));
    };
    while (low < high && negligible(low)) ++low;
    while (low < high && negligible(high - 1)) --high;
    branch.low = low;
    branch.high = high;
    return low < high;
}

// Room for the rows of all frames from the first.
void SharedScores::reserve(Branch& branch) {
    branch.rows = work_.rows.reserve(static_cast<std::size_t>((P_ - branch.low) * branch.stride()));
}

void SharedScores::keep(const Branch& branch) {
    work_.rows.keep(static_cast<std::size_t>((branch.high - branch.low) * branch.stride()));
}

// Runs through the frames from the first in which the branch is entered until nothing is left of
// it.
template <int N, bool REPEATS>
void SharedScores::run(Branch& branch) {
    const int n = N > 0 ? N : branch.n_tokens;
    const int in_end = branch.high;
    reserve(branch);
    States<N> sum, max;
    double skips[N > 0 ? N : kLongest], probs[N > 0 ? N : kLongest];
    for (int i = 1; i < n; ++i) skips[i] = branch.tokens[i] == branch.tokens[i - 1] ? 0.0 : 1.0;
    int t = branch.low;
    for (; t < P_; ++t) {
        const auto frame = static_cast<std::size_t>(t);
        const double* probs_V = frames_.probs(frame);
        const double blank = probs_V[options_.blank], sil = probs_V[options_.sil];
        for (int i = 0; i < n; ++i) probs[i] = probs_V[branch.tokens[i]];
        const bool entered = t < in_end;
        step<Sum, N, REPEATS>(sum, n, entered ? work_.in_sum[frame] : 0.0, probs, skips, blank,
                              sil);
        step<Max, N, REPEATS>(max, n, entered ? work_.in_max[frame] : 0.0, probs, skips, blank,
                              sil);
        if (SentenceFrames::is_checked(frame)) {
            const double left =
                drop<N>(sum, max, n, frames_.least(frame), frames_.max_scale(frame));
            if (left == 0.0 && t + 1 >= in_end) break;
        }
        store<N>(sum, max, n, direct_, row(branch, t));
    }
    branch.high = t;
    keep(branch);
    if (t == P_) branch.ended_sum = sum.label[n - 1] + sum.blank[n - 1] + sum.sil + sum.silent;
}

template <int N>
void SharedScores::run(Branch& branch) {
    bool repeats = false;
    for (int i = 1; i < branch.n_tokens; ++i)
        repeats = repeats || branch.tokens[i] == branch.tokens[i - 1];
    if (repeats)
        run<N, true>(branch);
    else
        run<N, false>(branch);
}

// The blanks and silences before the first word.
void SharedScores::run_start(Branch& branch) {
    branch.low = 0;
    reserve(branch);
    double start = 1.0, open_sum = 0.0, sil_sum = 0.0, silent_sum = 0.0;
    double open_max = 0.0, sil_max = 0.0, silent_max = 0.0;
    int t = 0;
    for (; t < P_; ++t) {
        const auto frame = static_cast<std::size_t>(t);
        const double* probs_V = frames_.probs(frame);
        const double blank = probs_V[options_.blank], least = frames_.least(frame),
                     scale = frames_.max_scale(frame);
        const double sil = probs_V[options_.sil];
        const double silences_sum = sil_sum + silent_sum,
                     silences_max = Max::join(sil_max, silent_max);
        open_sum += start;
        open_max += start;
        start = 0.0;
        sil_sum = (silences_sum + open_sum) * sil;
        sil_max = Max::join(silences_max, open_max) * sil * scale;
        silent_sum = silences_sum * blank;
        silent_max = silences_max * blank * scale;
        open_sum *= blank;
        open_max *= blank * scale;
        if (open_sum < least) open_sum = open_max = 0.0;
        if (sil_sum < least) sil_sum = sil_max = 0.0;
        if (silent_sum < least) silent_sum = silent_max = 0.0;
        const double all = open_sum + sil_sum + silent_sum;
        if (all == 0.0) break;
        branch.high = t + 1;
        const double values[] = {open_max,   sil_max,
                                 silent_max, all,
                                 0.0,        Max::join(open_max, Max::join(sil_max, silent_max)),
                                 0.0};
        std::copy(std::begin(values), std::end(values), row(branch, t));
    }
    keep(branch);
    if (t == P_) branch.ended_sum = open_sum + sil_sum + silent_sum;
}

// Where the best path of the sentence ends.
SharedScores::PathPoint SharedScores::best_end() const {
    const Node& last = work_.nodes.back();
    PathPoint best{P_ - 1, static_cast<int>(last.first_branch), 0};
    double most = -1.0;
    auto consider = [&](std::size_t i, int state) {
        const double value = at(work_.branches[i], P_ - 1, state);
        if (value > most) {
            most = value;
            best = {P_ - 1, static_cast<int>(i), state};
        }
    };
    for (std::size_t i = last.first_branch; i < last.end_branch; ++i) {
        const Branch& branch = work_.branches[i];
        if (branch.n_tokens > 0) consider(i, branch.n_tokens - 1);
        consider(i, branch.last_blank());
        consider(i, branch.sil());
        consider(i, branch.sil() + 1);
    }
    return best;
}

// Follows the best path back from the end of the sentence to a word that the path traced before
// left from the same point.
void SharedScores::trace(PathPoint point) {
    work_.spans.resize(std::max(work_.spans.size(), work_.nodes.size()));
    work_.direct.resize(work_.spans.size());
    for (std::size_t depth = work_.nodes.size() - 1; depth > 0; --depth) {
        Node& node = work_.nodes[depth];
        if (node.left.t == point.t && node.left.branch == point.branch &&
            node.left.state == point.state)
            return;
        node.left = point;
        bool direct = false;
        point = enter_word(point, work_.nodes[depth - 1], work_.spans[depth - 1], direct);
        work_.direct[depth - 1] = direct && depth > 1;
    }
}

// Follows the best path back from a point in a word to the last frame before the word.
SharedScores::PathPoint SharedScores::enter_word(PathPoint point, const Node& parent, Span& span,
                                                 bool& direct) const {
    const Branch& branch = branch_at(point.branch);
    const int n = branch.n_tokens, sil = branch.sil();
    span.end = 0;
    for (int t = point.t, state = point.state;; --t) {
        int from = state;
        double best = at(branch, t - 1, state);
        auto consider = [&](int source) {
            const double value = at(branch, t - 1, source);
            if (value > best) {
                best = value;
                from = source;
            }
        };
        if (state == sil) {
            consider(n - 1);
            consider(2 * n - 1);
            consider(sil + 1);
        } else if (state >= n) {
            consider(state == sil + 1 ? sil : state - n);
        } else {
            if (span.end == 0) span.end = t + 1;
            if (state > 0) {
                if (branch.tokens[state] != branch.tokens[state - 1]) consider(state - 1);
                consider(n + state - 1);
            } else {
                PathPoint before{};
                if (best_exit(parent, t - 1, branch.tokens[0], before) * branch.weight > best) {
                    span.first = t;
                    direct = before.state < branch_at(before.branch).sil();
                    return before;
                }
            }
        }
        state = from;
    }
}

// The best of a word's states from which another word that begins with a token may go on after
// frame t.
double SharedScores::best_exit(const Node& parent, int t, int next_token, PathPoint& from) const {
    double best = 0.0;
    auto consider = [&](std::size_t i, int state, double factor) {
        const double value = at(work_.branches[i], t, state) * factor;
        if (value > best) {
            best = value;
            from = {t, static_cast<int>(i), state};
        }
    };
    const bool is_start = parent.first_branch == 0;
    if (is_start && t < 0) {
        from = {t, 0, 0};
        return 1.0;
    }
    for (std::size_t i = parent.first_branch; i < parent.end_branch; ++i) {
        const Branch& branch = work_.branches[i];
        if (branch.n_tokens > 0 && branch.last_token() != next_token)
            consider(i, branch.n_tokens - 1, direct_);
        consider(i, branch.last_blank(), is_start ? 1.0 : direct_);
        consider(i, branch.sil(), 1.0);
        consider(i, branch.sil() + 1, 1.0);
    }
    return best;
}

}  // namespace cortext
