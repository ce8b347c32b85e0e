// The word lattice of one utterance: which words may have ended when, and after which others.
//
// A node stands for "a word has just ended, and the search is in this context": all ways to be
// between words in that context at that frame. An arc leads to a node from an earlier one by a
// word, or by none where hypotheses that were there already have stayed. Nodes are numbered in the
// order of time, so arcs lead from lower to higher numbers.
//
// An arc's score is its share of its node, log(paths through the arc / all paths that reach the
// node), so that the scores along a path to the end add up to what the path's score lacks of the
// whole, and one pass backwards gives posteriors. Where paths are joined by their maximum, the
// share is of the best path.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "contexts.hpp"

namespace cortext {

using LatticeNode = std::uint32_t;

constexpr LatticeNode kNoNode = 0xFFFFFFFFu;

struct LatticeArc {
    LatticeNode from;
    WordId word;  // kNoWord: none
    float score;
};

// Stands for the words that all paths to a node have in common; `exact` if these are all that there
// are.
struct CommonWords {
    std::uint32_t words;  // the last of them, in Lattice::sequences_
    bool exact;
};

class Lattice {
public:
    struct Node {
        ContextId context;
        std::int32_t frame;
        std::uint32_t first_arc;
        double best;  // the score of the best path from the start
    };

    Lattice() { clear(); }

    // Begin again with the start node, 0, alone.
    void clear();

    LatticeNode size() const { return static_cast<LatticeNode>(nodes_.size()); }
    std::size_t n_arcs() const { return arcs_.size(); }
    const Node& operator[](LatticeNode node) const { return nodes_[node]; }
    const LatticeArc* arcs_of(LatticeNode node) const {
        return arcs_.data() + nodes_[node].first_arc;
    }
    const LatticeArc* arcs_end(LatticeNode node) const {
        return arcs_.data() +
               (node + 1 < nodes_.size() ? nodes_[node + 1].first_arc : arcs_.size());
    }

    // A new node with the arcs added since the last one. There must be at least one.
    void add_arc(LatticeNode from, WordId word, float score) {
        arcs_.push_back({from, word, score});
    }
    LatticeNode add_node(ContextId context, std::int32_t frame);

    // The words of the best path to a node.
    std::vector<WordId> best_words(LatticeNode node) const;

    // The words that the paths to all these nodes begin with.
    std::vector<WordId> common_words(const std::vector<LatticeNode>& nodes);

    // Keep about `max_arcs` arcs, the best ones: those on the best paths to the `live` nodes, whose
    // hypotheses score `live_scores`; and, be they more, the best arc to every node that is kept.
    // Returns the nodes' new numbers, kNoNode for those gone.
    std::vector<LatticeNode> prune(const std::vector<LatticeNode>& live,
                                   const std::vector<float>& live_scores, std::size_t max_arcs);

private:
    std::vector<double> arc_totals(const std::vector<LatticeNode>& live,
                                   const std::vector<float>& live_scores) const;
    void update_common();
    std::uint32_t longer(std::uint32_t words, WordId word);
    CommonWords in_common(CommonWords one, CommonWords other) const;

    std::vector<Node> nodes_;
    std::vector<LatticeArc> arcs_;
    std::size_t finished_arcs_ = 0;

    // Word sequences as a tree of last words, and for each node up to the last one asked for, what
    // its paths share.
    struct Words {
        std::uint32_t before;
        WordId word;
        std::uint32_t length;
    };
    std::vector<Words> sequences_;
    FlatMap<std::uint32_t> longer_;
    std::vector<CommonWords> common_;
};

}  // namespace cortext
