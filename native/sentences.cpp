#include "sentences.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <unordered_map>

#include "sentence_frames.hpp"
#include "sentence_states.hpp"

namespace cortext {

namespace {

using Words = std::vector<const Spelling*>;
using Numbers = std::vector<std::uint32_t>;

constexpr double kNever = -std::numeric_limits<double>::infinity();
constexpr std::size_t kKeptRows = std::size_t{1} << 22;  // 32 MB
constexpr int kLongest = 64;                             // tokens of a pronunciation; longer ones are scored slowly
constexpr double kTrustedSum = 1e-16, kTrustedBest = 1e-25;  // of the total that the frames are scaled by

// One pronunciation of a word after the words before it: sums and maxima over all paths from the start of the utterance
// into each of its states, for the frames from `low` on and before `high`; outside they are zero. The states are its
// labels, the blank after each, SIL, and the blank after SIL. Every frame has a row in the workspace: the maxima of the
// states, and four values from which the next word goes on in the next frame, the cost of a boundary included: sums
// from all states but the last label, from the last label (only if the word begins with another), and maxima of them.
struct Branch {
    const std::uint8_t* tokens;
    int n_tokens;  // 0: the start of the sentence, which has a blank, SIL and the blank after SIL
    double weight;
    std::size_t rows;
    int low, high;
    double ended_sum;  // after the last frame

    int n_blanks() const { return n_tokens > 0 ? n_tokens : 1; }
    int last_blank() const { return n_tokens + n_blanks() - 1; }
    int sil() const { return n_tokens + n_blanks(); }
    int open_sum() const { return sil() + 2; }
    int label_sum() const { return sil() + 3; }
    int open_max() const { return sil() + 4; }
    int label_max() const { return sil() + 5; }
    int stride() const { return sil() + 6; }
    int last_token() const { return n_tokens > 0 ? tokens[n_tokens - 1] : -1; }
};

// Where a path is in one frame.
struct Place {
    int t, branch, state;
};

// A word after the words before it.
struct Node {
    std::uint32_t spelling;
    std::size_t first_branch, end_branch, rows;
    Place left;  // the end of the word's part of the path that was traced last
};

// What is kept from one utterance to the next, so that nothing is allocated then.
struct Workspace {
    std::vector<double> rows, in_sum, in_max;
    std::size_t used = 0;
    std::vector<Branch> branches;
    std::vector<Node> nodes;
    std::vector<Span> spans;
    std::vector<std::uint8_t> direct;  // whether the traced path enters the word without SIL
};

// The states of a branch in one frame. N is the number of tokens, or 0 if the compiler does not know it.
template <int N>
struct States {
    double label[N > 0 ? N : kLongest] = {}, blank[N > 0 ? N : kLongest] = {}, sil = 0.0, silent = 0.0;
};

struct Sum {
    static double join(double a, double b) { return a + b; }
};

struct Max {
    static double join(double a, double b) { return a > b ? a : b; }
};

// One frame of the recursion over the states of a branch; `in` is what enters it.
//     probs: of the labels;  skips: 1 where a label may follow the one before it without blank, else 0
template <class Join, int N>
inline void step(States<N>& x, int n, double in, const double* probs, const double* skips, double blank, double sil) {
    const int last = n - 1;
    const double ends = Join::join(x.label[last], x.blank[last]);
    const double silent = Join::join(x.silent, x.sil);
    x.sil = Join::join(silent, ends) * sil;
    x.silent = silent * blank;
    for (int i = last; i > 0; --i) {
        x.blank[i] = Join::join(x.blank[i], x.label[i]) * blank;
        x.label[i] = Join::join(Join::join(x.label[i], x.blank[i - 1]), x.label[i - 1] * skips[i]) * probs[i];
    }
    x.blank[0] = Join::join(x.blank[0], x.label[0]) * blank;
    x.label[0] = Join::join(x.label[0], in) * probs[0];
}

// Zeroes what is less than `least`; returns the sum of what is left.
template <int N>
inline double drop(States<N>& sum, States<N>& max, int n, double least) {
    double left = 0.0;
    auto one = [&](double& s, double& m) {
        const bool keep = s >= least;
        s = keep ? s : 0.0;
        m = keep ? m : 0.0;
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

// Scores sentences one after another; each goes on from the words that it shares with the one before.
class SharedScores {
public:
    SharedScores(const SentenceFrames& frames, const SentenceOptions& options, Workspace& work);

    // The paths of a sentence. False if too much of it may have been left out as improbable.
    bool score(const Words& words, const std::uint32_t* spellings, SentencePaths& paths);

private:
    void push(const Spelling& spelling, std::uint32_t number);
    void run_start(Branch& branch);
    bool enter(const Node& parent, Branch& branch);
    template <int N>
    void run(Branch& branch);
    void reserve(Branch& branch, std::size_t n_frames);
    template <int N>
    void store(const Branch& branch, int t, const States<N>& sum, const States<N>& max, double direct);

    Place best_end() const;
    void trace(Place place);
    Place enter_word(Place place, const Node& parent, Span& span, bool& direct) const;
    double best_exit(const Node& parent, int t, int next_token, Place& from) const;

    double* row(const Branch& branch, int t) const {
        return work_.rows.data() + branch.rows + static_cast<std::size_t>((t - branch.low) * branch.stride());
    }
    double at(const Branch& branch, int t, int value) const {
        return t < branch.low || t >= branch.high ? 0.0 : row(branch, t)[value];
    }
    const Branch& branch_at(int number) const { return work_.branches[static_cast<std::size_t>(number)]; }

    const SentenceFrames& frames_;
    const SentenceOptions& options_;
    const int P_;
    const double direct_;  // factor on entering a word without SIL
    Workspace& work_;
};

SharedScores::SharedScores(const SentenceFrames& frames, const SentenceOptions& options, Workspace& work)
    : frames_(frames),
      options_(options),
      P_(static_cast<int>(frames.P())),
      direct_(options.sil_required ? 0.0 : std::exp(-options.sil_cost)),
      work_(work) {
    work.used = 0;
    work.in_sum.resize(frames.P() + 1);
    work.in_max.resize(frames.P() + 1);
    work.branches.assign(1, {nullptr, 0, 1.0, 0, 0, 0, 0.0});
    work.nodes.assign(1, {0, 0, 1, 0, {-1, -1, -1}});
    run_start(work.branches[0]);
}

bool SharedScores::score(const Words& words, const std::uint32_t* spellings, SentencePaths& paths) {
    std::size_t shared = 0;
    while (shared < words.size() && shared + 1 < work_.nodes.size() &&
           work_.nodes[shared + 1].spelling == spellings[shared]) {
        ++shared;
    }
    if (shared + 1 < work_.nodes.size()) {
        const Node& first = work_.nodes[shared + 1];
        work_.used = first.rows;
        work_.branches.resize(first.first_branch);
        work_.nodes.resize(shared + 1);
    }
    for (std::size_t word = shared; word < words.size(); ++word) push(*words[word], spellings[word]);

    const Node& last = work_.nodes.back();
    double sum = 0.0;
    for (std::size_t i = last.first_branch; i < last.end_branch; ++i) sum += work_.branches[i].ended_sum;
    if (!(sum > kTrustedSum * frames_.total()) || !std::isfinite(sum)) return false;
    const Place end = best_end();
    const double best = at(branch_at(end.branch), end.t, end.state);
    if (best < kTrustedBest * frames_.total()) return false;
    paths.score = std::log(options_.logadd ? sum : best) + frames_.log_scale();
    trace(end);
    paths.spans.assign(work_.spans.begin(), work_.spans.begin() + static_cast<std::ptrdiff_t>(words.size()));
    paths.boundaries = 0;
    for (std::size_t word = 0; word < words.size(); ++word) paths.boundaries += work_.direct[word];
    return true;
}

void SharedScores::push(const Spelling& spelling, std::uint32_t number) {
    const Node parent = work_.nodes.back();
    const std::size_t first = work_.branches.size();
    const std::size_t rows = work_.used;
    for (const Pronunciation& pronunciation : spelling) {
        const auto n_tokens = static_cast<int>(pronunciation.tokens.size());
        const double weight = std::exp(options_.acoustic_scale * pronunciation.log_weight);
        Branch branch{pronunciation.tokens.data(), n_tokens, weight, work_.used, P_, 0, 0.0};
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

// Finds what enters a word from the words before it, frame by frame, and in which frames. False if nothing does.
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
            max[t + 1] = Max::join(max[t + 1], Max::join(x[from.open_max()], labels * x[from.label_max()]) * branch.weight);
        }
    }
    // What enters in frame t was there in the frame before.
    auto negligible = [&](int t) { return t > 0 && sum[t] < frames_.least(static_cast<std::size_t>(t - 1)); };
    while (low < high && negligible(low)) ++low;
    while (low < high && negligible(high - 1)) --high;
    branch.low = low;
    branch.high = high;
    return low < high;
}

// Room for the rows of so many frames.
void SharedScores::reserve(Branch& branch, std::size_t n_frames) {
    branch.rows = work_.used;
    const std::size_t needed = work_.used + n_frames * static_cast<std::size_t>(branch.stride());
    if (work_.rows.size() < needed) work_.rows.resize(std::max(needed, 2 * work_.rows.size()));
}

template <int N>
inline void SharedScores::store(const Branch& branch, int t, const States<N>& sum, const States<N>& max,
                                double direct) {
    const int n = N > 0 ? N : branch.n_tokens;
    double* x = row(branch, t);
    for (int i = 0; i < n; ++i) x[i] = max.label[i];
    for (int i = 0; i < n; ++i) x[n + i] = max.blank[i];
    x += 2 * n;
    x[0] = max.sil;
    x[1] = max.silent;
    x[2] = sum.sil + sum.silent + sum.blank[n - 1] * direct;
    x[3] = sum.label[n - 1] * direct;
    x[4] = Max::join(Max::join(max.sil, max.silent), max.blank[n - 1] * direct);
    x[5] = max.label[n - 1] * direct;
}

// Runs through the frames from the first in which the branch is entered until nothing is left of it.
template <int N>
void SharedScores::run(Branch& branch) {
    const int n = N > 0 ? N : branch.n_tokens;
    const int in_end = branch.high;
    reserve(branch, static_cast<std::size_t>(P_ - branch.low));
    States<N> sum, max;
    double skips[N > 0 ? N : kLongest], probs[N > 0 ? N : kLongest];
    skips[0] = 0.0;
    for (int i = 1; i < n; ++i) skips[i] = branch.tokens[i] == branch.tokens[i - 1] ? 0.0 : 1.0;
    int t = branch.low;
    for (; t < P_; ++t) {
        const double* probs_V = frames_.probs(static_cast<std::size_t>(t));
        const double blank = probs_V[options_.blank], sil = probs_V[options_.sil];
        for (int i = 0; i < n; ++i) probs[i] = probs_V[branch.tokens[i]];
        const bool entered = t < in_end;
        step<Sum, N>(sum, n, entered ? work_.in_sum[static_cast<std::size_t>(t)] : 0.0, probs, skips, blank, sil);
        step<Max, N>(max, n, entered ? work_.in_max[static_cast<std::size_t>(t)] : 0.0, probs, skips, blank, sil);
        const double left = drop<N>(sum, max, n, frames_.least(static_cast<std::size_t>(t)));
        if (left == 0.0 && t + 1 >= in_end) break;
        store<N>(branch, t, sum, max, direct_);
    }
    branch.high = t;
    work_.used = branch.rows + static_cast<std::size_t>((branch.high - branch.low) * branch.stride());
    if (t == P_) branch.ended_sum = sum.label[n - 1] + sum.blank[n - 1] + sum.sil + sum.silent;
}

// The blanks and silences before the first word.
void SharedScores::run_start(Branch& branch) {
    reserve(branch, frames_.P());
    double start = 1.0, open = 0.0, sil_sum = 0.0, silent_sum = 0.0, sil_max = 0.0, silent_max = 0.0;
    int t = 0;
    for (; t < P_; ++t) {
        const double* probs_V = frames_.probs(static_cast<std::size_t>(t));
        const double blank = probs_V[options_.blank], sil = probs_V[options_.sil];
        const double least = frames_.least(static_cast<std::size_t>(t));
        const double silences_sum = sil_sum + silent_sum, silences_max = Max::join(sil_max, silent_max);
        open += start;
        sil_sum = (silences_sum + open) * sil;
        sil_max = Max::join(silences_max, open) * sil;
        silent_sum = silences_sum * blank;
        silent_max = silences_max * blank;
        open *= blank;
        start = 0.0;
        if (open < least) open = 0.0;
        if (sil_sum < least) sil_sum = sil_max = 0.0;
        if (silent_sum < least) silent_sum = silent_max = 0.0;
        if (open + sil_sum + silent_sum == 0.0) break;
        const double values[] = {open, sil_max, silent_max, open + sil_sum + silent_sum, 0.0,
                                 Max::join(open, Max::join(sil_max, silent_max)), 0.0};
        branch.high = t + 1;
        std::copy(std::begin(values), std::end(values), row(branch, t));
    }
    work_.used = branch.rows + static_cast<std::size_t>(branch.high * branch.stride());
    if (t == P_) branch.ended_sum = open + sil_sum + silent_sum;
}

// Where the best path of the sentence ends.
Place SharedScores::best_end() const {
    const Node& last = work_.nodes.back();
    Place best{P_ - 1, static_cast<int>(last.first_branch), 0};
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

// Follows the best path back from the end of the sentence to a word that the path traced before left from the same
// place.
void SharedScores::trace(Place place) {
    work_.spans.resize(std::max(work_.spans.size(), work_.nodes.size()));
    work_.direct.resize(work_.spans.size());
    for (std::size_t depth = work_.nodes.size() - 1; depth > 0; --depth) {
        Node& node = work_.nodes[depth];
        if (node.left.t == place.t && node.left.branch == place.branch && node.left.state == place.state) return;
        node.left = place;
        bool direct = false;
        place = enter_word(place, work_.nodes[depth - 1], work_.spans[depth - 1], direct);
        work_.direct[depth - 1] = direct && depth > 1;
    }
}

// Follows the best path back from a place in a word to the last frame before the word.
Place SharedScores::enter_word(Place place, const Node& parent, Span& span, bool& direct) const {
    const Branch& branch = branch_at(place.branch);
    const int n = branch.n_tokens, sil = branch.sil();
    span.end = 0;
    for (int t = place.t, state = place.state;; --t) {
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
                Place before{};
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

// The best of a word's states from which another word that begins with a token may go on after frame t.
double SharedScores::best_exit(const Node& parent, int t, int next_token, Place& from) const {
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
        if (branch.n_tokens > 0 && branch.last_token() != next_token) consider(i, branch.n_tokens - 1, direct_);
        consider(i, branch.last_blank(), is_start ? 1.0 : direct_);
        consider(i, branch.sil(), 1.0);
        consider(i, branch.sil() + 1, 1.0);
    }
    return best;
}

// Numbers for spellings; those of homophones are equal.
class SpellingNumbers {
public:
    std::uint32_t of(const Spelling* spelling) {
        auto [known, is_new] = by_address_.try_emplace(spelling, 0);
        if (!is_new) return known->second;
        std::size_t hash = spelling->size();
        for (const Pronunciation& each : *spelling) {
            for (std::uint8_t token : each.tokens) hash = hash * 1000003 + token;
            hash = hash * 1000003 + each.tokens.size();
        }
        auto same = [&](const Spelling* other) {
            return std::equal(spelling->begin(), spelling->end(), other->begin(), other->end(),
                              [](const Pronunciation& a, const Pronunciation& b) {
                                  return a.log_weight == b.log_weight && a.tokens == b.tokens;
                              });
        };
        auto [first, last] = by_content_.equal_range(hash);
        for (; first != last; ++first) {
            if (same(distinct_[first->second])) return known->second = first->second;
        }
        known->second = static_cast<std::uint32_t>(distinct_.size());
        by_content_.emplace(hash, known->second);
        distinct_.push_back(spelling);
        return known->second;
    }
    const std::vector<const Spelling*>& distinct() const { return distinct_; }

private:
    std::unordered_map<const Spelling*, std::uint32_t> by_address_;
    std::unordered_multimap<std::size_t, std::uint32_t> by_content_;
    std::vector<const Spelling*> distinct_;
};

// The labels that words are made of, and the greatest sum of factors with which a word is entered.
struct Labels {
    std::vector<int> tokens;
    double spread;
    std::size_t longest;
};

Labels labels_of(const std::vector<const Spelling*>& spellings, const SentenceOptions& options) {
    const double direct = options.sil_required ? 0.0 : std::exp(-options.sil_cost);
    Labels labels{{}, 1.0, 0};
    std::vector<bool> seen(256);
    for (const Spelling* spelling : spellings) {
        double entered = 0.0;
        for (const Pronunciation& pronunciation : *spelling) {
            entered += std::exp(options.acoustic_scale * pronunciation.log_weight);
            labels.longest = std::max(labels.longest, pronunciation.tokens.size());
            for (std::uint8_t token : pronunciation.tokens) {
                if (!seen[token]) labels.tokens.push_back(token);
                seen[token] = true;
            }
        }
        labels.spread = std::max(labels.spread, entered * std::max(direct, 1.0));
    }
    return labels;
}

// Fewer frames than this hold no path of the sentence.
std::size_t fewest_frames(const Words& words) {
    std::size_t frames = 0;
    for (const Spelling* spelling : words) {
        std::size_t shortest = std::numeric_limits<std::uint32_t>::max();
        for (const Pronunciation& each : *spelling) shortest = std::min(shortest, each.tokens.size());
        frames += shortest;
    }
    return frames;
}

// Scores the sentences of one utterance: together where that is exact, else alone.
class Utterance {
public:
    Utterance(const std::vector<Words>& sentences, const double* scores_PV, std::size_t P, std::size_t V,
              const SentenceOptions& options)
        : sentences_(sentences), scores_PV_(scores_PV), P_(P), V_(V), options_(options), results_(sentences.size()) {}

    std::vector<SentencePaths> score() {
        std::vector<std::size_t> order;
        for (std::size_t i = 0; i < sentences_.size(); ++i) {
            results_[i] = {kNever, 0, {}};
            if (fewest_frames(sentences_[i]) > P_) continue;
            if (P_ == 0) results_[i].score = 0.0;
            else order.push_back(i);
        }
        if (!order.empty()) score_together(order);
        return std::move(results_);
    }

private:
    void score_together(std::vector<std::size_t> order);
    void score_alone(std::size_t sentence);

    const std::vector<Words>& sentences_;
    const double* scores_PV_;
    const std::size_t P_, V_;
    const SentenceOptions& options_;
    std::vector<SentencePaths> results_;
};

Workspace& workspace() {
    static thread_local Workspace work;
    return work;
}

void Utterance::score_together(std::vector<std::size_t> order) {
    SpellingNumbers numbers;
    std::vector<Numbers> spellings(sentences_.size());
    for (std::size_t i : order) {
        for (const Spelling* spelling : sentences_[i]) spellings[i].push_back(numbers.of(spelling));
    }
    const Labels labels = labels_of(numbers.distinct(), options_);
    SentenceFrames frames(scores_PV_, P_, V_);
    const SentenceStates likely(sentences_[order.front()], options_);
    if (labels.longest > kLongest || !frames.scale_by(likely, labels.tokens, labels.spread, options_)) {
        for (std::size_t i : order) score_alone(i);
        return;
    }
    std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return spellings[a] < spellings[b]; });
    std::vector<std::size_t> left;
    {
        SharedScores shared(frames, options_, workspace());
        for (std::size_t i : order) {
            if (!shared.score(sentences_[i], spellings[i].data(), results_[i])) left.push_back(i);
        }
    }
    for (std::size_t i : left) {
        if (order.size() > 1) score_together({i});
        else score_alone(i);
    }
}

void Utterance::score_alone(std::size_t sentence) {
    results_[sentence] = SentenceStates(sentences_[sentence], options_).exact(scores_PV_, P_, V_);
}

}  // namespace

std::vector<SentencePaths> score_sentences(const std::vector<Words>& sentences, const double* scores_PV, std::size_t P,
                                           std::size_t V, const SentenceOptions& options) {
    std::vector<SentencePaths> results = Utterance(sentences, scores_PV, P, V, options).score();
    if (workspace().rows.size() > kKeptRows) workspace() = Workspace();
    return results;
}

}  // namespace cortext
