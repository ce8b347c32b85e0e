// The frames of an utterance as probabilities, scaled so that the forward sums of a likely sentence
// stay near 1 (as in Rabiner's tutorial on hidden Markov models, 1989). Sums and products of
// probabilities take a fraction of the time that sums of logarithms take.
#pragma once

#include <cstddef>
#include <vector>

#include "sentence_states.hpp"

namespace cortext {

class SentenceFrames {
public:
    SentenceFrames(const double* scores_PV, std::size_t P, std::size_t V)
        : scores_PV_(scores_PV), P_(P), V_(V) {}

    // Scales the frames by the forward sums of one sentence. False where that sentence is so much
    // unlike the frames that sums relative to it would not be exact.
    //     tokens:  those that the sentences to score are made of, blank and SIL aside
    //     spread:  at most this is the sum of the factors with which words can follow a state
    //     lenient: take them even so, and leave out more
    bool scale_by(const SentenceStates& likely, const std::vector<int>& tokens, double spread,
                  bool lenient, const SentenceOptions& options);

    std::size_t P() const { return P_; }
    const double* probs(std::size_t t) const { return probs_PV_.data() + t * V_; }
    // Only in some frames is anything dropped, and are best paths scaled.
    static constexpr bool is_checked(std::size_t t) { return t % 4 == 3; }
    // Factor by which best paths are scaled beyond the sums; 1 in the other frames.
    double max_scale(std::size_t t) const { return max_scales_P_[t]; }
    // Sums below count as zero in frame t: even with the best of what follows they would not come
    // to 1e-30 of the total of the sentence that the frames are scaled by, nor their best path to
    // 1e-22 of its best.
    double least(std::size_t t) const { return least_P_[t]; }

    // Of the sentence that the frames are scaled by, and what to add to the logarithms.
    double sum() const { return course_.sum; }
    double max() const { return course_.max; }
    double log_sum_scale() const { return log_sum_scale_; }
    double log_max_scale() const { return log_max_scale_; }

private:
    void find_probs(const std::vector<int>& tokens, const SentenceOptions& options);
    bool find_least(const std::vector<int>& tokens, double spread, bool lenient,
                    const SentenceOptions& options);
    void rescale(const std::vector<int>& tokens, const SentenceOptions& options);

    const double* scores_PV_;
    std::size_t P_, V_;
    std::vector<double> probs_PV_, bests_P_, max_scales_P_, least_P_;
    SentenceStates::Course course_;
    double log_sum_scale_ = 0.0, log_max_scale_ = 0.0;
};

}  // namespace cortext
