// The CTC states of one sentence, one after another: slow and exact in logarithms, and a quick pass
// that says how large the forward sums of a likely sentence are in each frame.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "sentences.hpp"

namespace cortext {

class SentenceStates {
public:
    SentenceStates(const std::vector<const Spelling*>& words, const SentenceOptions& options);

    // The score, boundaries and spans, whatever the numbers in scores_PV are. Time and memory grow
    // with the square of the length of the utterance if `all` states are followed; else only those
    // are that are not by more than 3000 worse than the best.
    SentencePaths exact(const double* scores_PV, std::size_t P, std::size_t V, bool all) const;

    // How many numbers `exact` finds.
    std::size_t cells(std::size_t P) const { return P * size(); }

    // What all states hold in each frame, relative to the frame before, and in the end the final
    // states, relative to all: forward sums of probabilities, and the best paths.
    struct Course {
        std::vector<double> sum_gains_P, max_gains_P;
        double sum, max;
    };

    // False where the frames do not fit. States with less than 1e-100 at the ends of the sentence
    // are forgotten, so that time grows with the length of the utterance only.
    //     probs_PV: probabilities relative to those of the scores bests_P; both are changed in
    //     frames where the
    //               sentence has nothing that is near to the best, so that they are relative to the
    //               best that it has
    bool follow(const double* scores_PV, std::size_t P, std::size_t V, double* probs_PV,
                double* bests_P, Course& course) const;

private:
    struct Source {
        std::uint32_t state;
        double added;   // to the score
        double factor;  // of the probability: exp(added)
    };

    struct Paths {
        double sum, max;
    };

    std::uint32_t add(int token, const std::vector<Source>& sources, std::int32_t word);
    std::vector<Source> add_silence(const std::vector<Source>& ends);
    template <class Visit>
    std::vector<double> run(const double* scores_PV, std::size_t P, std::size_t V, bool all,
                            Visit visit) const;
    double forward(const double* scores_PV, std::size_t P, std::size_t V, bool all) const;
    double viterbi(const double* scores_PV, std::size_t P, std::size_t V, bool all,
                   std::vector<std::uint32_t>& path) const;
    Paths advance(const std::vector<Paths>& alpha, std::size_t low, std::size_t high,
                  const double* probs_V, std::vector<Paths>& next) const;
    double best_of(const std::vector<Paths>& alpha, std::size_t low, std::size_t high,
                   const double* scores_V) const;
    void read(const std::vector<std::uint32_t>& path, SentencePaths& paths) const;
    std::size_t size() const { return tokens_.size(); }

    SentenceOptions options_;
    std::int32_t n_words_;
    std::vector<std::uint8_t> tokens_;
    std::vector<std::int32_t> words_;          // -1: none
    std::vector<std::uint32_t> first_source_;  // of each state, and the number of all sources
    std::vector<Source> sources_;              // state by state; first the state itself
    std::vector<std::uint32_t> finals_;
    std::vector<std::uint32_t>
        farthest_;  // the highest state that a state or one below it leads to
};

}  // namespace cortext
