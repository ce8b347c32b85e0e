#include "lattice_paths.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <queue>
#include <utility>

#include "log_add.hpp"

namespace cortext {

namespace {

constexpr double kNever = -std::numeric_limits<double>::infinity();
constexpr double kRounding = 1e-6;       // of scores added up in another order
constexpr std::size_t kMostStates = 32;  // of a second n-gram at one node
constexpr std::size_t kMostVisits =
    4000000;  // of arcs in A*, a fraction of a second; a hundred sentences take 10,000
constexpr float kSmallestPosterior = 1e-5f;
constexpr std::uint32_t kNoSuffix = 0xFFFFFFFFu;

// The last words of sentences, found backwards by A*.
//
// The estimate of what is still to come is exact: `best` of a node is the score of the best path
// from the start to it. So no estimate is too low, and sentences come off the queue in the order of
// their best paths. A candidate is a sequence of last words with all the nodes that it leads to:
// with a candidate for each node the same words would come up once for each of their timings.
class SuffixSearch {
public:
    SuffixSearch(const Lattice& lattice, double beam) : lattice_(lattice) {
        LatticeNode last = lattice.size() - 1;
        least_ = lattice[last].best - beam - kRounding;
        suffixes_.push_back({kNoSuffix, kNoWord});
        members_.push_back({last, 0.0});
        open_.push({lattice[last].best, 0, 0, 1, false});
    }

    // The next best sentence; false if there is none left.
    bool next(std::vector<WordId>& words) {
        while (!open_.empty() && n_visits_ < kMostVisits) {
            Candidate best = open_.top();
            open_.pop();
            if (best.is_complete) {
                words.clear();
                for (std::uint32_t at = best.suffix; suffixes_[at].word != kNoWord;
                     at = suffixes_[at].after) {
                    words.push_back(suffixes_[at].word);
                }
                return true;
            }
            expand(best);
        }
        return false;
    }

private:
    struct Member {
        LatticeNode node;
        double score;  // from the node to the end
        bool operator<(const Member& other) const {
            return node != other.node ? node < other.node : score < other.score;
        }
    };
    struct Suffix {
        std::uint32_t after;
        WordId word;
    };
    struct Candidate {
        double total;
        std::uint32_t suffix;
        std::size_t first_member, end_member;
        bool is_complete;
        bool operator<(const Candidate& other) const {
            return total != other.total ? total < other.total : suffix > other.suffix;
        }
    };
    struct Step {
        WordId word;
        LatticeNode node;
        double score;
        bool operator<(const Step& other) const {
            if (word != other.word) return word < other.word;
            return node != other.node ? node < other.node : score > other.score;
        }
    };

    // Sentences that go on (backwards) with each word that leads to the candidate's nodes.
    void expand(const Candidate& candidate) {
        steps_.clear();
        double to_start = kNever;
        nodes_.assign(members_.begin() + static_cast<std::ptrdiff_t>(candidate.first_member),
                      members_.begin() + static_cast<std::ptrdiff_t>(candidate.end_member));
        std::make_heap(nodes_.begin(), nodes_.end());
        // Nodes from which hypotheses came here without a word: the last first, so that each is
        // visited once, and then with its best score.
        LatticeNode visited = kNoNode;
        while (!nodes_.empty()) {
            std::pop_heap(nodes_.begin(), nodes_.end());
            Member member = nodes_.back();
            nodes_.pop_back();
            if (member.node == visited) continue;
            visited = member.node;
            if (member.node == 0) to_start = member.score;
            for (const LatticeArc* arc = lattice_.arcs_of(member.node);
                 arc < lattice_.arcs_end(member.node); ++arc) {
                ++n_visits_;
                double score = member.score + arc->score;
                if (score + lattice_[arc->from].best < least_) continue;
                if (arc->word == kNoWord) {
                    nodes_.push_back({arc->from, score});
                    std::push_heap(nodes_.begin(), nodes_.end());
                } else {
                    steps_.push_back({arc->word, arc->from, score});
                }
            }
        }
        if (to_start > kNever) open_.push({to_start, candidate.suffix, 0, 0, true});
        open_steps(candidate.suffix);
    }

    void open_steps(std::uint32_t after) {
        std::sort(steps_.begin(), steps_.end());
        for (std::size_t at = 0; at < steps_.size();) {
            WordId word = steps_[at].word;
            std::size_t first = members_.size();
            double total = kNever;
            for (; at < steps_.size() && steps_[at].word == word; ++at) {
                const Step& step = steps_[at];
                total = std::max(total, step.score + lattice_[step.node].best);
                bool is_new = members_.size() == first || members_.back().node != step.node;
                if (is_new) members_.push_back({step.node, step.score});
            }
            suffixes_.push_back({after, word});
            open_.push({total, static_cast<std::uint32_t>(suffixes_.size() - 1), first,
                        members_.size(), false});
        }
    }

    const Lattice& lattice_;
    double least_;
    std::size_t n_visits_ = 0;
    std::vector<Suffix> suffixes_;
    std::vector<Member> members_, nodes_;
    std::vector<Step> steps_;
    std::priority_queue<Candidate> open_;
};

// For each arc the logarithm of its share of all paths from the start to the last node.
std::vector<double> arc_posteriors(const Lattice& lattice) {
    std::vector<double> before(lattice.size(), kNever), after(lattice.size(), kNever);
    before[0] = 0.0;
    after[lattice.size() - 1] = 0.0;
    // Arcs lead from lower to higher numbers: one pass forwards, one backwards.
    for (LatticeNode node = 1; node < lattice.size(); ++node) {
        for (const LatticeArc* arc = lattice.arcs_of(node); arc < lattice.arcs_end(node); ++arc) {
            before[node] = log_add(before[node], before[arc->from] + arc->score);
        }
    }
    std::vector<double> posteriors(lattice.n_arcs());
    const LatticeArc* all = lattice.arcs_of(0);
    for (LatticeNode node = lattice.size(); node-- > 1;) {
        for (const LatticeArc* arc = lattice.arcs_of(node); arc < lattice.arcs_end(node); ++arc) {
            after[arc->from] = log_add(after[arc->from], after[node] + arc->score);
            posteriors[static_cast<std::size_t>(arc - all)] =
                before[arc->from] + arc->score + after[node] - before[lattice.size() - 1];
        }
    }
    return posteriors;
}

// Takes the search's n-gram out of a lattice and puts a second one in, node by node.
class Rescoring {
public:
    Rescoring(const Lattice& lattice, Contexts& contexts, const NGram& second,
              const Options& options)
        : lattice_(lattice),
          contexts_(contexts),
          second_(second),
          options_(options),
          states_(lattice.size()) {}

    Lattice result() {
        Lattice result;
        states_[0].push_back({second_.begin(), 0, 0.0, {}});
        for (LatticeNode node = 1; node < lattice_.size(); ++node) {
            std::vector<State>& here = states_[node];
            for (const LatticeArc* arc = lattice_.arcs_of(node); arc < lattice_.arcs_end(node);
                 ++arc) {
                for (const State& from : states_[arc->from]) extend(from, *arc, node, here);
            }
            std::stable_sort(here.begin(), here.end(),
                             [](const State& a, const State& b) { return a.best > b.best; });
            if (here.size() > kMostStates) here.erase(here.begin() + kMostStates, here.end());
            for (State& state : here) {
                for (const LatticeArc& arc : state.arcs)
                    result.add_arc(arc.from, arc.word, arc.score);
                state.node = result.add_node(lattice_[node].context, lattice_[node].frame);
                state.arcs = {};
            }
        }
        return result;
    }

private:
    // The paths to a node that are alike for the second n-gram.
    struct State {
        NGramState state;
        LatticeNode node;  // of the new lattice
        double best;
        std::vector<LatticeArc> arcs;
    };

    void extend(const State& from, const LatticeArc& arc, LatticeNode node,
                std::vector<State>& here) {
        NGramState state = from.state;
        double change = 0.0;
        if (arc.word != kNoWord) {
            change = word_change(from.state, arc, state);
        } else if (node + 1 == lattice_.size()) {
            change = second_.end(from.state) - contexts_.end(lattice_[arc.from].context);
            state = second_.begin();  // all sentences end alike
        }
        float score = arc.score + static_cast<float>(options_.lm_weight * change);
        auto same = [&](const State& known) {
            return known.state.length == state.length &&
                   std::equal(state.words, state.words + state.length, known.state.words);
        };
        auto known = std::find_if(here.begin(), here.end(), same);
        if (known == here.end()) known = here.insert(here.end(), {state, 0, kNever, {}});
        known->arcs.push_back({from.node, arc.word, score});
        known->best = std::max(known->best, from.best + score);
    }

    // What the second n-gram gives a word, less what the search's gave it.
    double word_change(const NGramState& before, const LatticeArc& arc, NGramState& after) {
        const Vocabulary& vocabulary = contexts_.vocabulary();
        auto [index, is_new] = indices_.try_emplace(arc.word, 0);
        if (is_new) index->second = second_.index(vocabulary.text(arc.word));
        auto unknown = [this](WordIndex word) { return word == 0 ? options_.unk_score : 0.0; };
        double gained = second_.score(before, index->second, after) + unknown(index->second);
        double lost = contexts_.next(lattice_[arc.from].context, arc.word).log_prob +
                      unknown(vocabulary.ngram_word(arc.word));
        return gained - lost;
    }

    const Lattice& lattice_;
    Contexts& contexts_;
    const NGram& second_;
    const Options& options_;
    std::vector<std::vector<State>> states_;         // of each node
    std::unordered_map<WordId, WordIndex> indices_;  // of the second n-gram
};

}  // namespace

std::vector<std::vector<WordId>> best_sentences(const Lattice& lattice, std::size_t n,
                                                double beam) {
    SuffixSearch search(lattice, beam);
    std::vector<std::vector<WordId>> sentences;
    std::vector<WordId> words;
    while (sentences.size() < n && search.next(words)) sentences.push_back(words);
    if (sentences.empty()) sentences.push_back(lattice.best_words(lattice.size() - 1));
    return sentences;
}

WordPosteriors::WordPosteriors(const Lattice& lattice) {
    std::vector<double> posteriors = arc_posteriors(lattice);
    const LatticeArc* all = lattice.arcs_of(0);
    for (LatticeNode node = 1; node < lattice.size(); ++node) {
        for (const LatticeArc* arc = lattice.arcs_of(node); arc < lattice.arcs_end(node); ++arc) {
            if (arc->word == kNoWord) continue;
            auto probability =
                static_cast<float>(std::exp(posteriors[static_cast<std::size_t>(arc - all)]));
            if (probability < kSmallestPosterior) continue;
            said_[arc->word].push_back({lattice[node].frame, probability});
        }
    }
}

double WordPosteriors::operator()(WordId word, std::int32_t first, std::int32_t end) const {
    auto found = said_.find(word);
    if (found == said_.end()) return 0.0;
    double sum = 0.0;
    for (const Said& said : found->second) {
        if (said.frame >= first && said.frame < end) sum += said.probability;
    }
    return std::min(sum, 1.0);
}

Lattice rescored(const Lattice& lattice, Contexts& contexts, const NGram& second,
                 const Options& options) {
    return Rescoring(lattice, contexts, second, options).result();
}

}  // namespace cortext
