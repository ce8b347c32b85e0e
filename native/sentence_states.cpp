#include "sentence_states.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

namespace cortext {

namespace {

constexpr double kNever = -std::numeric_limits<double>::infinity();
constexpr double kForgotten = 1e-100;
constexpr double kMargin = 3000.0;     // three times what a floor costs
constexpr double kMostExcess = 138.0;  // log of 1e60

double log_add(double a, double b) {
    if (a < b) std::swap(a, b);
    return b == kNever ? a : a + std::log1p(std::exp(b - a));
}

}  // namespace

// State 0 is the start, before the first frame; it follows nothing and is never come back to.
SentenceStates::SentenceStates(const std::vector<const Spelling*>& words,
                               const SentenceOptions& options)
    : options_(options), n_words_(static_cast<std::int32_t>(words.size())) {
    const double direct = options.sil_required ? kNever : -options.sil_cost;
    first_source_.push_back(0);
    tokens_.push_back(static_cast<std::uint8_t>(options.blank));
    words_.push_back(-1);
    first_source_.push_back(0);
    std::vector<Source> ends{{0, 0.0, 1.0}};
    ends.push_back({add(options.blank, ends, -1), 0.0, 1.0});
    std::vector<Source> silent = add_silence(ends);
    double cost = 0.0;
    for (std::int32_t word = 0; word < n_words_; ++word) {
        std::vector<Source> next;
        for (const Pronunciation& pronunciation : *words[static_cast<std::size_t>(word)]) {
            const double weight = options.acoustic_scale * pronunciation.log_weight;
            std::vector<Source> before;
            for (const Source& end : ends)
                before.push_back({end.state, weight + cost, std::exp(weight + cost)});
            for (const Source& end : silent)
                before.push_back({end.state, weight, std::exp(weight)});
            for (std::uint8_t token : pronunciation.tokens) {
                // CTC: equal tokens in a row are one unless a blank stands between them, so no
                // state leads to another of its own token, across words either.
                auto same = [&](const Source& source) { return tokens_[source.state] == token; };
                before.erase(std::remove_if(before.begin(), before.end(), same), before.end());
                const std::uint32_t label = add(token, before, word);
                const std::uint32_t blank = add(options.blank, {{label, 0.0, 1.0}}, -1);
                before = {{label, 0.0, 1.0}, {blank, 0.0, 1.0}};
            }
            next.insert(next.end(), before.begin(), before.end());
        }
        ends = std::move(next);
        silent = add_silence(ends);
        cost = direct;
    }
    for (const Source& end : ends) finals_.push_back(end.state);
    for (const Source& end : silent) finals_.push_back(end.state);

    farthest_.resize(size());
    for (std::uint32_t state = 0; state < size(); ++state) {
        farthest_[state] = std::max(farthest_[state], state);
        for (std::uint32_t i = first_source_[state]; i < first_source_[state + 1]; ++i) {
            farthest_[sources_[i].state] = std::max(farthest_[sources_[i].state], state);
        }
    }
    for (std::size_t state = 1; state < size(); ++state) {
        farthest_[state] = std::max(farthest_[state], farthest_[state - 1]);
    }
}

std::uint32_t SentenceStates::add(int token, const std::vector<Source>& sources,
                                  std::int32_t word) {
    const auto state = static_cast<std::uint32_t>(size());
    tokens_.push_back(static_cast<std::uint8_t>(token));
    words_.push_back(word);
    sources_.push_back({state, 0.0, 1.0});
    sources_.insert(sources_.end(), sources.begin(), sources.end());
    first_source_.push_back(static_cast<std::uint32_t>(sources_.size()));
    return state;
}

// SIL, any number of times, after `ends`.
std::vector<SentenceStates::Source> SentenceStates::add_silence(const std::vector<Source>& ends) {
    std::vector<Source> sources = ends;
    const auto sil = static_cast<std::uint32_t>(size());
    sources.push_back({sil + 1, 0.0, 1.0});
    add(options_.sil, sources, -1);
    add(options_.blank, {{sil, 0.0, 1.0}}, -1);
    return {{sil, 0.0, 1.0}, {sil + 1, 0.0, 1.0}};
}

SentencePaths SentenceStates::exact(const double* scores_PV, std::size_t P, std::size_t V,
                                    bool all) const {
    SentencePaths paths{kNever, 0, {}};
    std::vector<std::uint32_t> path;
    const double best = viterbi(scores_PV, P, V, all, path);
    if (best == kNever) return paths;
    paths.score = options_.logadd ? forward(scores_PV, P, V, all) : best;
    read(path, paths);
    return paths;
}

// Goes through the frames; returns the scores of the states after the last.
//     visit: called in frame t with the scores before it and a state, returns the score of all that
//     leads there;
//            with the first state of the window before the others of the frame
template <class Visit>
std::vector<double> SentenceStates::run(const double* scores_PV, std::size_t P, std::size_t V,
                                        bool all, Visit visit) const {
    std::vector<double> alpha(size(), kNever), next(size(), kNever);
    alpha[0] = 0.0;
    std::size_t low = 0, high = all ? size() : 1;
    for (std::size_t t = 0; t < P && low < high; ++t) {
        high = farthest_[high - 1] + 1;
        double best = kNever;
        for (std::size_t state = low; state < high; ++state) {
            next[state] = visit(alpha, t, low, state) + scores_PV[t * V + tokens_[state]];
            best = std::max(best, next[state]);
        }
        alpha.swap(next);
        if (all) continue;
        const double least = best - kMargin;
        while (low < high && !(alpha[low] >= least && alpha[low] > kNever))
            alpha[low] = next[low] = kNever, ++low;
        while (low < high && !(alpha[high - 1] >= least && alpha[high - 1] > kNever)) {
            --high;
            alpha[high] = next[high] = kNever;
        }
    }
    return alpha;
}

double SentenceStates::forward(const double* scores_PV, std::size_t P, std::size_t V,
                               bool all) const {
    auto visit = [this](const std::vector<double>& alpha, std::size_t, std::size_t,
                        std::size_t state) {
        double sum = kNever;
        for (std::uint32_t i = first_source_[state]; i < first_source_[state + 1]; ++i) {
            const double path = alpha[sources_[i].state] + sources_[i].added;
            if (path > kNever) sum = log_add(sum, path);
        }
        return sum;
    };
    const std::vector<double> alpha = run(scores_PV, P, V, all, visit);
    double sum = kNever;
    for (std::uint32_t state : finals_) sum = log_add(sum, alpha[state]);
    return sum;
}

double SentenceStates::viterbi(const double* scores_PV, std::size_t P, std::size_t V, bool all,
                               std::vector<std::uint32_t>& path) const {
    struct Window {
        std::size_t low, at;
    };
    std::vector<Window> windows;
    std::vector<std::uint16_t> came;  // number of the source, window by window
    auto visit = [&](const std::vector<double>& alpha, std::size_t t, std::size_t low,
                     std::size_t state) {
        if (windows.size() == t) windows.push_back({low, came.size()});
        double best = kNever;
        std::uint16_t from = 0;
        for (std::uint32_t i = first_source_[state]; i < first_source_[state + 1]; ++i) {
            const double score = alpha[sources_[i].state] + sources_[i].added;
            if (score > best) {
                best = score;
                from = static_cast<std::uint16_t>(i - first_source_[state]);
            }
        }
        came.push_back(from);
        return best;
    };
    const std::vector<double> alpha = run(scores_PV, P, V, all, visit);
    std::uint32_t state = finals_.front();
    for (std::uint32_t each : finals_) {
        if (alpha[each] > alpha[state]) state = each;
    }
    const double best = alpha[state];
    if (best == kNever) return best;
    path.resize(P);
    for (std::size_t t = P; t-- > 0;) {
        path[t] = state;
        state = sources_[first_source_[state] + came[windows[t].at + state - windows[t].low]].state;
    }
    return best;
}

// Boundaries and spans, from the state of each frame.
void SentenceStates::read(const std::vector<std::uint32_t>& path, SentencePaths& paths) const {
    paths.spans.reserve(static_cast<std::size_t>(n_words_));
    bool silent = true;
    for (std::size_t t = 0; t < path.size(); ++t) {
        const auto frame = static_cast<std::int32_t>(t);
        const std::int32_t word = words_[path[t]];
        if (word >= 0) {
            if (paths.spans.size() <= static_cast<std::size_t>(word)) {
                paths.spans.push_back({frame, 0});
                paths.boundaries += !silent;
            }
            paths.spans.back().end = frame + 1;
            silent = false;
        } else if (tokens_[path[t]] == options_.sil) {
            silent = true;
        }
    }
}

bool SentenceStates::follow(const double* scores_PV, std::size_t P, std::size_t V, double* probs_PV,
                            double* bests_P, Course& course) const {
    std::vector<Paths> alpha(size()), next(size());
    alpha[0] = {1.0, 1.0};
    std::size_t low = 0, high = 1;
    course.sum_gains_P.resize(P);
    course.max_gains_P.resize(P);
    for (std::size_t t = 0; t < P; ++t) {
        high = farthest_[high - 1] + 1;
        Paths all = advance(alpha, low, high, probs_PV + t * V, next);
        if (!(all.sum > kForgotten)) {
            bests_P[t] = best_of(alpha, low, high, scores_PV + t * V);
            for (std::size_t v = 0; v < V; ++v) {
                probs_PV[t * V + v] =
                    std::exp(std::min(scores_PV[t * V + v] - bests_P[t], kMostExcess));
            }
            all = advance(alpha, low, high, probs_PV + t * V, next);
        }
        if (!(all.sum > kForgotten && all.max > kForgotten)) return false;
        alpha.swap(next);
        course.sum_gains_P[t] = all.sum;
        course.max_gains_P[t] = all.max;
        const Paths scale{1.0 / all.sum, 1.0 / all.max};
        for (std::size_t state = low; state < high; ++state) {
            const Paths scaled{alpha[state].sum * scale.sum, alpha[state].max * scale.max};
            alpha[state] = scaled.sum < kForgotten ? Paths{0.0, 0.0} : scaled;
        }
        while (alpha[low].sum == 0.0) next[low++] = {0.0, 0.0};
        while (alpha[high - 1].sum == 0.0) next[--high] = {0.0, 0.0};
    }
    course.sum = course.max = 0.0;
    for (std::uint32_t state : finals_) {
        course.sum += alpha[state].sum;
        course.max = std::max(course.max, alpha[state].max);
    }
    return true;
}

// One frame for the states from `low` on and before `high`; returns what they hold together.
SentenceStates::Paths SentenceStates::advance(const std::vector<Paths>& alpha, std::size_t low,
                                              std::size_t high, const double* probs_V,
                                              std::vector<Paths>& next) const {
    Paths all{0.0, 0.0};
    for (std::size_t state = low; state < high; ++state) {
        Paths paths{0.0, 0.0};
        for (std::uint32_t i = first_source_[state]; i < first_source_[state + 1]; ++i) {
            const Source& source = sources_[i];
            paths.sum += alpha[source.state].sum * source.factor;
            paths.max = std::max(paths.max, alpha[source.state].max * source.factor);
        }
        const double prob = probs_V[tokens_[state]];
        next[state] = {paths.sum * prob, paths.max * prob};
        all = {all.sum + next[state].sum, std::max(all.max, next[state].max)};
    }
    return all;
}

// The best score of a token that the sentence may go on with.
double SentenceStates::best_of(const std::vector<Paths>& alpha, std::size_t low, std::size_t high,
                               const double* scores_V) const {
    double best = kNever;
    for (std::size_t state = low; state < high; ++state) {
        for (std::uint32_t i = first_source_[state]; i < first_source_[state + 1]; ++i) {
            if (alpha[sources_[i].state].sum * sources_[i].factor > 0.0) {
                best = std::max(best, scores_V[tokens_[state]]);
            }
        }
    }
    return best;
}

}  // namespace cortext
