// What given sentences score, exactly, and when their words were said: CTC forward and Viterbi over
// all frames, no beam. The paths and their scores are those that cortext/decoding/nbest.py defines.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace cortext {

// Token numbers of the inventory, neither blank nor SIL; at least one.
struct Pronunciation {
    std::vector<std::uint8_t> tokens;
    double log_weight;
};

// The pronunciations of one word.
using Spelling = std::vector<Pronunciation>;

// Each word of a sentence can follow each pronunciation of the one before it: memory grows with the
// square.
constexpr std::size_t kMostPronunciations = 1000;

// Frames from `first` on and before `end`.
struct Span {
    std::int32_t first, end;
};

// The paths that read one sentence.
struct SentencePaths {
    double score;  // all of them joined, without the n-gram and word scores; -inf where none fits
    std::int32_t
        boundaries;  // how often the best path enters a word directly after another, without SIL
    std::vector<Span>
        spans;  // of the phonemes of each word on the best path; empty where no path fits
};

struct SentenceOptions {
    double acoustic_scale;  // factor on the log weights of pronunciations; the scores have theirs
                            // already
    double sil_cost;        // subtracted for every word that follows another without SIL
    bool logadd;            // join paths by the sum of their probabilities, not by the maximum
    bool sil_required;      // no word follows another without SIL
    int blank, sil;         // token numbers
};

// Scores sentences, each given as the spellings of its words; none (silence) is a sentence too.
// Fastest where the likeliest sentence is the first and the sentences share their beginnings.
// Scores are exact to 1e-6; but in long utterances, where that would take more than seconds, paths
// are left out that at some frame are 1e-30 of those of the likeliest sentence. scores_PV:
// row-major, what each token adds to a path's score in each frame; -inf where forbidden
std::vector<SentencePaths> score_sentences(
    const std::vector<std::vector<const Spelling*>>& sentences, const double* scores_PV,
    std::size_t P, std::size_t V, const SentenceOptions& options);

}  // namespace cortext
