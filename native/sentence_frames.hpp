// The frames of an utterance as probabilities, scaled so that the forward sums of a likely sentence stay near 1.
#pragma once

#include <cstddef>
#include <vector>

#include "sentence_states.hpp"

namespace cortext {

class SentenceFrames {
public:
    SentenceFrames(const double* scores_PV, std::size_t P, std::size_t V) : scores_PV_(scores_PV), P_(P), V_(V) {}

    // Scales the frames by the forward sums of one sentence. False where that sentence is so unlikely, or so much
    // unlike the frames, that nothing could be said of others by it.
    //     tokens: those that the sentences to score are made of, blank and SIL aside
    //     spread: at most this is the sum of the factors with which words can follow a state
    bool scale_by(const SentenceStates& likely, const std::vector<int>& tokens, double spread,
                  const SentenceOptions& options);

    std::size_t P() const { return P_; }
    const double* probs(std::size_t t) const { return probs_PV_.data() + t * V_; }
    // What is left out as zero in frame t: even with the best of what follows it would not come to 1e-30 of the total
    // of the sentence that the frames are scaled by.
    double least(std::size_t t) const { return least_P_[t]; }
    double total() const { return total_; }          // of the sentence that the frames are scaled by
    double log_scale() const { return log_scale_; }  // to add to the log of what the scaled frames give

private:
    void find_probs(const std::vector<int>& tokens, const SentenceOptions& options);
    bool find_least(const std::vector<int>& tokens, double spread, const SentenceOptions& options);

    const double* scores_PV_;
    std::size_t P_, V_;
    std::vector<double> probs_PV_, gains_P_, least_P_;
    double total_ = 0.0, log_scale_ = 0.0;
};

}  // namespace cortext
