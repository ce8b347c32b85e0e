#include "sentences.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <unordered_map>

#include "sentence_frames.hpp"
#include "sentence_states.hpp"
#include "shared_scores.hpp"

namespace cortext {

namespace {

using Words = std::vector<const Spelling*>;
using Numbers = std::vector<std::uint32_t>;

constexpr double kNever = -std::numeric_limits<double>::infinity();
constexpr std::size_t kAffordableCells =
    20'000'000;                         // about a second for what is exact only in logarithms
constexpr std::size_t kKeptChunks = 8;  // of 4 MB

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
        for (const Pronunciation& each : *spelling)
            shortest = std::min(shortest, each.tokens.size());
        frames += shortest;
    }
    return frames;
}

// Scores the sentences of one utterance: together where that is exact, else alone.
class SentenceScores {
public:
    SentenceScores(const std::vector<Words>& sentences, const double* scores_PV, std::size_t P,
                   std::size_t V, const SentenceOptions& options)
        : sentences_(sentences),
          scores_PV_(scores_PV),
          P_(P),
          V_(V),
          options_(options),
          results_(sentences.size()) {}

    std::vector<SentencePaths> find() {
        std::vector<std::size_t> order;
        for (std::size_t i = 0; i < sentences_.size(); ++i) {
            results_[i] = {kNever, 0, {}};
            if (fewest_frames(sentences_[i]) > P_) continue;
            if (P_ == 0)
                results_[i].score = 0.0;
            else
                order.push_back(i);
        }
        if (!order.empty()) score_together(order);
        return std::move(results_);
    }

private:
    void score_together(std::vector<std::size_t> order);
    bool score_shared(std::vector<std::size_t>& order, const SentenceStates& likely, bool lenient);

    const std::vector<Words>& sentences_;
    const double* scores_PV_;
    const std::size_t P_, V_;
    const SentenceOptions& options_;
    std::vector<SentencePaths> results_;
    std::size_t affordable_ = kAffordableCells;
};

SharedScores::Workspace& workspace() {
    static thread_local SharedScores::Workspace work;
    return work;
}

// The first sentence of the order is the likeliest.
void SentenceScores::score_together(std::vector<std::size_t> order) {
    const SentenceStates likely(sentences_[order.front()], options_);
    const std::size_t cells = likely.cells(P_);
    const std::size_t n_sentences = order.size();
    if (score_shared(order, likely, cells * n_sentences > affordable_)) return;
    if (n_sentences > 1) {
        // Alone, a sentence is the one that its frames are scaled by, so nothing of it gets too
        // small.
        for (std::size_t i : order) score_together({i});
    } else {
        const bool affordable = cells <= affordable_;
        affordable_ -= std::min(cells, affordable_);
        results_[order.front()] = likely.exact(scores_PV_, P_, V_, affordable);
    }
}

// Leaves those in the order that could not be scored; returns whether there are none.
bool SentenceScores::score_shared(std::vector<std::size_t>& order, const SentenceStates& likely,
                                  bool lenient) {
    SpellingNumbers numbers;
    std::vector<Numbers> spellings(sentences_.size());
    for (std::size_t i : order) {
        for (const Spelling* spelling : sentences_[i]) spellings[i].push_back(numbers.of(spelling));
    }
    const Labels labels = labels_of(numbers.distinct(), options_);
    if (labels.longest > SharedScores::kLongest) return false;
    SentenceFrames frames(scores_PV_, P_, V_);
    if (!frames.scale_by(likely, labels.tokens, labels.spread, lenient, options_)) return false;
    // Neighbours in this order share the most first words, which are computed once.
    std::sort(order.begin(), order.end(),
              [&](std::size_t a, std::size_t b) { return spellings[a] < spellings[b]; });
    SharedScores shared(frames, options_, workspace());
    auto is_scored = [&](std::size_t i) {
        return shared.score(sentences_[i], spellings[i].data(), lenient, results_[i]);
    };
    order.erase(std::remove_if(order.begin(), order.end(), is_scored), order.end());
    return order.empty();
}

}  // namespace

std::vector<SentencePaths> score_sentences(const std::vector<Words>& sentences,
                                           const double* scores_PV, std::size_t P, std::size_t V,
                                           const SentenceOptions& options) {
    std::vector<SentencePaths> results = SentenceScores(sentences, scores_PV, P, V, options).find();
    if (workspace().rows.n_chunks() > kKeptChunks) workspace() = SharedScores::Workspace();
    return results;
}

}  // namespace cortext
