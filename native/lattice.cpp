#include "lattice.hpp"

#include <algorithm>
#include <functional>

namespace cortext {

namespace {
constexpr double kNever = -std::numeric_limits<double>::infinity();
}

void Lattice::clear() {
    nodes_.assign(1, {Contexts::kBegin, -1, 0, 0.0});
    arcs_.clear();
    finished_arcs_ = 0;
    sequences_.assign(1, {0, kNoWord, 0});
    longer_.clear();
    common_.assign(1, {0, true});
}

LatticeNode Lattice::add_node(ContextId context, std::int32_t frame) {
    Node node{context, frame, static_cast<std::uint32_t>(finished_arcs_), kNever};
    for (std::size_t arc = finished_arcs_; arc < arcs_.size(); ++arc) {
        node.best = std::max(node.best, nodes_[arcs_[arc].from].best + arcs_[arc].score);
    }
    finished_arcs_ = arcs_.size();
    nodes_.push_back(node);
    return size() - 1;
}

std::vector<WordId> Lattice::best_words(LatticeNode node) const {
    std::vector<WordId> words;
    while (node != 0) {
        auto total = [this](const LatticeArc& arc) { return nodes_[arc.from].best + arc.score; };
        const LatticeArc* best =
            std::max_element(arcs_of(node), arcs_end(node),
                             [&](const auto& a, const auto& b) { return total(a) < total(b); });
        if (best->word != kNoWord) words.push_back(best->word);
        node = best->from;
    }
    std::reverse(words.begin(), words.end());
    return words;
}

std::vector<WordId> Lattice::common_words(const std::vector<LatticeNode>& nodes) {
    update_common();
    CommonWords shared = common_[nodes.front()];
    for (LatticeNode node : nodes) shared = in_common(shared, common_[node]);
    std::vector<WordId> words;
    for (std::uint32_t at = shared.words; at != 0; at = sequences_[at].before)
        words.push_back(sequences_[at].word);
    std::reverse(words.begin(), words.end());
    return words;
}

void Lattice::update_common() {
    for (auto node = static_cast<LatticeNode>(common_.size()); node < size(); ++node) {
        bool is_first = true;
        CommonWords shared{};
        for (const LatticeArc* arc = arcs_of(node); arc < arcs_end(node); ++arc) {
            CommonWords words = common_[arc->from];
            // After a word in doubt nothing more is common: the same word on all paths would not be
            // the same word of their sentences.
            if (arc->word != kNoWord && words.exact) words.words = longer(words.words, arc->word);
            shared = is_first ? words : in_common(shared, words);
            is_first = false;
        }
        common_.push_back(shared);
    }
}

std::uint32_t Lattice::longer(std::uint32_t words, WordId word) {
    bool is_new;
    std::uint32_t& known = longer_.at(pair_key(words, word), is_new);
    if (is_new) {
        known = static_cast<std::uint32_t>(sequences_.size());
        sequences_.push_back({words, word, sequences_[words].length + 1});
    }
    return known;
}

CommonWords Lattice::in_common(CommonWords one, CommonWords other) const {
    if (one.words == other.words) return {one.words, one.exact && other.exact};
    std::uint32_t a = one.words, b = other.words;
    while (a != b) {
        if (sequences_[a].length < sequences_[b].length) std::swap(a, b);
        a = sequences_[a].before;
    }
    return {a, false};
}

// The score of the best path through each arc to any live node.
std::vector<double> Lattice::arc_totals(const std::vector<LatticeNode>& live,
                                        const std::vector<float>& live_scores) const {
    std::vector<double> after(nodes_.size(), kNever);  // the best from a node to the end
    for (std::size_t each = 0; each < live.size(); ++each) {
        after[live[each]] = std::max(after[live[each]], double{live_scores[each]});
    }
    std::vector<double> totals(arcs_.size());
    for (LatticeNode node = size(); node-- > 0;) {
        for (std::size_t arc = nodes_[node].first_arc;
             arc < static_cast<std::size_t>(arcs_end(node) - arcs_.data()); ++arc) {
            double onwards = arcs_[arc].score + after[node];
            after[arcs_[arc].from] = std::max(after[arcs_[arc].from], onwards);
            totals[arc] = nodes_[arcs_[arc].from].best + onwards;
        }
    }
    return totals;
}

std::vector<LatticeNode> Lattice::prune(const std::vector<LatticeNode>& live,
                                        const std::vector<float>& live_scores,
                                        std::size_t max_arcs) {
    update_common();
    std::vector<double> totals = arc_totals(live, live_scores);
    double least = kNever;
    if (totals.size() > max_arcs) {
        std::vector<double> sorted = totals;
        std::nth_element(sorted.begin(), sorted.begin() + static_cast<std::ptrdiff_t>(max_arcs),
                         sorted.end(), std::greater<>());
        least = sorted[max_arcs];
    }
    // Whatever is kept must reach the start: a live node needs its best arc, and so does where that
    // comes from.
    std::vector<char> needed(nodes_.size(), 0), kept(arcs_.size(), 0);
    for (LatticeNode node : live) needed[node] = 1;
    for (LatticeNode node = size(); node-- > 1;) {
        if (!needed[node]) continue;
        std::size_t first = nodes_[node].first_arc,
                    end = static_cast<std::size_t>(arcs_end(node) - arcs_.data());
        std::size_t best = first;
        for (std::size_t arc = first; arc < end; ++arc) {
            if (totals[arc] > totals[best]) best = arc;
            kept[arc] = totals[arc] > least;
        }
        kept[best] = 1;
        for (std::size_t arc = first; arc < end; ++arc) {
            if (kept[arc]) needed[arcs_[arc].from] = 1;
        }
    }
    needed[0] = 1;
    std::vector<LatticeNode> renumbered(nodes_.size(), kNoNode);
    LatticeNode n_nodes = 0;
    std::uint32_t n_arcs = 0;
    for (LatticeNode node = 0; node < size(); ++node) {
        std::size_t first = nodes_[node].first_arc;
        std::size_t end = node + 1 < size() ? nodes_[node + 1].first_arc : arcs_.size();
        if (!needed[node]) continue;
        renumbered[node] = n_nodes;
        nodes_[n_nodes] = nodes_[node];
        nodes_[n_nodes].first_arc = n_arcs;
        common_[n_nodes++] = common_[node];
        for (std::size_t arc = first; arc < end; ++arc) {
            if (kept[arc])
                arcs_[n_arcs++] = {renumbered[arcs_[arc].from], arcs_[arc].word, arcs_[arc].score};
        }
    }
    nodes_.resize(n_nodes);
    common_.resize(n_nodes);
    arcs_.resize(n_arcs);
    finished_arcs_ = n_arcs;
    return renumbered;
}

}  // namespace cortext
