// The CTC states of one sentence, one after another: slow and exact in logarithms, and a quick pass that says how large
// the forward sums of a likely sentence are in each frame.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "sentences.hpp"

namespace cortext {

class SentenceStates {
public:
    SentenceStates(const std::vector<const Spelling*>& words, const SentenceOptions& options);

    // The score, boundaries and spans, whatever the numbers in scores_PV are. Time and memory grow with the square of
    // the length of the utterance.
    SentencePaths exact(const double* scores_PV, std::size_t P, std::size_t V) const;

    // Forward sums of probabilities, scaled so that those of all states sum to 1 in each frame; gains_P is what they
    // summed to before, and the result what the final states hold after the last frame. States with less than
    // 1e-100 at the ends of the sentence are forgotten, so that time grows with the length only. Stops and returns 0
    // where a frame leaves less than 1e-100 of all.
    double follow(const double* probs_PV, std::size_t P, std::size_t V, std::vector<double>& gains_P) const;

private:
    struct Source {
        std::uint32_t state;
        double added;   // to the score
        double factor;  // of the probability: exp(added)
    };

    std::uint32_t add(int token, const std::vector<Source>& sources, std::int32_t word);
    std::vector<Source> add_silence(const std::vector<Source>& ends);
    double forward(const double* scores_PV, std::size_t P, std::size_t V) const;
    double viterbi(const double* scores_PV, std::size_t P, std::size_t V, std::vector<std::uint32_t>& path) const;
    void read(const std::vector<std::uint32_t>& path, SentencePaths& paths) const;
    std::size_t size() const { return tokens_.size(); }

    SentenceOptions options_;
    std::int32_t n_words_;
    std::vector<std::uint8_t> tokens_;
    std::vector<std::int32_t> words_;          // -1: none
    std::vector<std::uint32_t> first_source_;  // of each state, and the number of all sources
    std::vector<Source> sources_;              // state by state; first the state itself
    std::vector<std::uint32_t> finals_;
    std::vector<std::uint32_t> farthest_;  // the highest state that a state or one below it leads to
};

}  // namespace cortext
