#include "sentence_states.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

namespace cortext {

namespace {

constexpr double kNever = -std::numeric_limits<double>::infinity();
constexpr double kForgotten = 1e-100;

double log_add(double a, double b) {
    if (a < b) std::swap(a, b);
    return b == kNever ? a : a + std::log1p(std::exp(b - a));
}

}  // namespace

// State 0 is the start, before the first frame; it follows nothing and is never come back to.
SentenceStates::SentenceStates(const std::vector<const Spelling*>& words, const SentenceOptions& options)
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
            for (const Source& end : ends) before.push_back({end.state, weight + cost, std::exp(weight + cost)});
            for (const Source& end : silent) before.push_back({end.state, weight, std::exp(weight)});
            for (std::uint8_t token : pronunciation.tokens) {
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

std::uint32_t SentenceStates::add(int token, const std::vector<Source>& sources, std::int32_t word) {
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

SentencePaths SentenceStates::exact(const double* scores_PV, std::size_t P, std::size_t V) const {
    SentencePaths paths{kNever, 0, {}};
    std::vector<std::uint32_t> path;
    const double best = viterbi(scores_PV, P, V, path);
    if (best == kNever) return paths;
    paths.score = options_.logadd ? forward(scores_PV, P, V) : best;
    read(path, paths);
    return paths;
}

double SentenceStates::forward(const double* scores_PV, std::size_t P, std::size_t V) const {
    std::vector<double> alpha(size(), kNever), next(size());
    alpha[0] = 0.0;
    for (std::size_t t = 0; t < P; ++t) {
        for (std::size_t state = 0; state < size(); ++state) {
            double sum = kNever;
            for (std::uint32_t i = first_source_[state]; i < first_source_[state + 1]; ++i) {
                const double path = alpha[sources_[i].state] + sources_[i].added;
                if (path > kNever) sum = log_add(sum, path);
            }
            next[state] = sum + scores_PV[t * V + tokens_[state]];
        }
        alpha.swap(next);
    }
    double sum = kNever;
    for (std::uint32_t state : finals_) sum = log_add(sum, alpha[state]);
    return sum;
}

double SentenceStates::viterbi(const double* scores_PV, std::size_t P, std::size_t V,
                               std::vector<std::uint32_t>& path) const {
    std::vector<double> alpha(size(), kNever), next(size());
    std::vector<std::uint16_t> came(P * size());
    alpha[0] = 0.0;
    for (std::size_t t = 0; t < P; ++t) {
        for (std::size_t state = 0; state < size(); ++state) {
            double best = kNever;
            for (std::uint32_t i = first_source_[state]; i < first_source_[state + 1]; ++i) {
                const double score = alpha[sources_[i].state] + sources_[i].added;
                if (score > best) {
                    best = score;
                    came[t * size() + state] = static_cast<std::uint16_t>(i - first_source_[state]);
                }
            }
            next[state] = best + scores_PV[t * V + tokens_[state]];
        }
        alpha.swap(next);
    }
    std::uint32_t state = finals_.front();
    for (std::uint32_t each : finals_) {
        if (alpha[each] > alpha[state]) state = each;
    }
    const double best = alpha[state];
    path.resize(P);
    for (std::size_t t = P; t-- > 0 && best > kNever;) {
        path[t] = state;
        state = sources_[first_source_[state] + came[t * size() + state]].state;
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

double SentenceStates::follow(const double* probs_PV, std::size_t P, std::size_t V,
                              std::vector<double>& gains_P) const {
    std::vector<double> alpha(size()), next(size());
    alpha[0] = 1.0;
    std::size_t low = 0, high = 1;
    gains_P.resize(P);
    for (std::size_t t = 0; t < P; ++t) {
        high = farthest_[high - 1] + 1;
        const double* probs_V = probs_PV + t * V;
        double all = 0.0;
        for (std::size_t state = low; state < high; ++state) {
            double sum = 0.0;
            for (std::uint32_t i = first_source_[state]; i < first_source_[state + 1]; ++i) {
                sum += alpha[sources_[i].state] * sources_[i].factor;
            }
            next[state] = sum * probs_V[tokens_[state]];
            all += next[state];
        }
        alpha.swap(next);
        if (!(all > kForgotten)) return 0.0;
        gains_P[t] = all;
        const double scale = 1.0 / all;
        for (std::size_t state = low; state < high; ++state) {
            alpha[state] = alpha[state] * scale < kForgotten ? 0.0 : alpha[state] * scale;
        }
        while (alpha[low] == 0.0) next[low++] = 0.0;
        while (alpha[high - 1] == 0.0) next[--high] = 0.0;
    }
    double ended = 0.0;
    for (std::uint32_t state : finals_) ended += alpha[state];
    return ended;
}

}  // namespace cortext
