// What is read off a finished lattice: the best sentences, how probable each word is, the lattice
// of another n-gram.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "contexts.hpp"
#include "lattice.hpp"
#include "options.hpp"

namespace cortext {

// The words of the `n` best different sentences whose paths lead to the last node, best first; a
// sentence scores as its best path. Those worse than the best by more than `beam` are left out. A*
// from the end, guided by the scores of the best paths from the start, over sets of nodes, so that
// each sequence of last words comes up once.
std::vector<std::vector<WordId>> best_sentences(const Lattice& lattice, std::size_t n, double beam);

// The posterior probabilities of words, from those of the lattice's arcs.
class WordPosteriors {
public:
    explicit WordPosteriors(const Lattice& lattice);

    // Probability that `word` was said with its last phoneme beginning in the frames [first, end).
    double operator()(WordId word, std::int32_t first, std::int32_t end) const;

private:
    struct Said {
        std::int32_t frame;
        float probability;
    };
    std::unordered_map<WordId, std::vector<Said>> said_;
};

// The lattice with the n-gram's scores taken out and those of `second` put in; its nodes are split
// where their paths differ for `second` (the best few dozen states are kept). The last node's arcs
// are sentence ends.
Lattice rescored(const Lattice& lattice, Contexts& contexts, const NGram& second,
                 const Options& options);

}  // namespace cortext
