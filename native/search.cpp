#include "search.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <limits>
#include <utility>

#include "log_add.hpp"

namespace cortext {

namespace {

constexpr float kNever = -std::numeric_limits<float>::infinity();
// The most by which a word's history is taken to raise its unigram score where that decides on a
// query of the n-gram. A query costs far more than a step in the tree.
constexpr float kHistoryGain = 2.0f;
constexpr std::uint32_t kLastEnd = 0xFFFFFFFFu;

}  // namespace

Search::Search(std::shared_ptr<const Vocabulary> vocabulary, const Options& options,
               std::shared_ptr<const LookAhead> ahead, Tokens tokens)
    : contexts_(std::move(vocabulary), options.history_words),
      vocabulary_(contexts_.vocabulary()),
      tokens_(tokens),
      slots_(1 << 12),
      entries_(static_cast<std::size_t>(2 * tokens.n_phonemes), 0),
      blank_scores_(static_cast<std::size_t>(tokens.count()), kNever) {
    const NodeId roots[] = {0, vocabulary_.added_root()};
    for (std::size_t tree = 0; tree < (vocabulary_.has_added() ? 2u : 1u); ++tree) {
        TreeNode root = vocabulary_.node(roots[tree]);
        for (NodeId child = root.first_child; child < root.end_child; ++child) {
            entries_[2 * std::size_t{vocabulary_.phoneme(child)} + tree] = child;
        }
    }
    use(Contexts::kBegin).boundary = 0;
    live_.push_back({Contexts::kBegin, after_sil_blank(), 0.0f, kNoNode, kNoNode, kNever});
    set_options(options, std::move(ahead));
}

void Search::set_options(const Options& options, std::shared_ptr<const LookAhead> ahead) {
    for (Hypothesis& hypothesis :
         live_) {  // the look-ahead in the scores is that of the old options
        if (is_between(hypothesis.position)) continue;
        float change = (*ahead)[hypothesis.position >> 1] - (*ahead_)[hypothesis.position >> 1];
        hypothesis.score += change;
        hypothesis.late_score += change;
    }
    options_ = options;
    ahead_ = std::move(ahead);
    sil_cost_ = static_cast<float>(options.sil_cost);
}

float Search::join(float one, float other) const {
    return options_.logadd ? rough_log_add(one, other) : std::max(one, other);
}

Search::Use& Search::use(ContextId context) {
    if (context >= uses_.size())
        uses_.resize(std::max<std::size_t>(contexts_.size(), 2 * uses_.size() + 64));
    return uses_[context];
}

void Search::begin_frame(const float* scores) {
    // Phonemes best first, and a mask of the first n for each n, as far as there is one: `move` and
    // `enter` try only those that can survive, without trying the others.
    ranked_.clear();
    for (int phoneme = 0; phoneme < tokens_.n_phonemes; ++phoneme) {
        if (scores[phoneme] > kNever)
            ranked_.emplace_back(scores[phoneme], static_cast<std::uint8_t>(phoneme));
    }
    std::sort(ranked_.begin(), ranked_.end(), std::greater<>());
    if (tokens_.n_phonemes <= kMostMasked) {
        ranked_masks_.assign(1, 0);
        for (const auto& each : ranked_)
            ranked_masks_.push_back(ranked_masks_.back() | std::uint64_t{1} << each.second);
    }
    scores_ = scores;
    reached_.clear();
    ends_.clear();
    ended_.clear();
    if (++stamp_ == 0) {  // after 2^32 frames
        std::fill(slots_.begin(), slots_.end(), Slot{});
        stamp_ = 1;
    }
    top_ = *std::max_element(scores, scores + tokens_.count());
    best_ = least_ = least_word_ = kNever;
    std::fill(std::begin(histogram_), std::end(histogram_), 0);
    cut_ = kLevels - 1;
    within_ = 0;
}

void Search::advance(const float* scores) {
    only_blanks_ = false;
    advance_within(scores);
}

void Search::advance_blank(float score) {
    if (only_blanks_) {  // all end in a blank already: another adds the same score to each
        offset_ += score;
        ++frame_;
        return;
    }
    blank_scores_.back() = score;
    advance_within(blank_scores_.data());
    only_blanks_ = true;
}

void Search::advance_within(const float* scores) {
    begin_frame(scores);
    // Staying comes first: the blank is the best token of most frames, so the beam is narrow before
    // the many continuations by a phoneme are tried, and most of those are never inserted.
    for (const Hypothesis& hypothesis : live_) {
        is_between(hypothesis.position) ? stay_between(hypothesis) : stay(hypothesis);
    }
    for (const Hypothesis& hypothesis : live_) {
        is_between(hypothesis.position) ? enter(hypothesis) : move(hypothesis);
    }
    prune();
    add_boundaries();
    ++frame_;
    if (lattice_.n_arcs() > static_cast<std::size_t>(options_.max_arcs)) shrink_lattice();
}

// Raise what survival takes: a hypothesis must be within the beam of the best, and among the
// max_active best, which a histogram of the scores bounds from below (sorting after every insertion
// would cost more than the search). More hypotheses can only raise it, so one that is below can be
// dropped at once; `prune` finds the exact limit once the frame is complete.
void Search::count(float score) {
    if (score > best_) best_ = score;
    auto level = static_cast<int>(
        std::clamp((top_ - score) * kLevelsPerUnit, 0.0f, static_cast<float>(kLevels - 1)));
    ++histogram_[level];
    if (level > cut_) return;
    ++within_;
    while (cut_ > 0 && within_ - histogram_[cut_] >= options_.max_active)
        within_ -= histogram_[cut_--];
    if (static_cast<int>(reached_.size()) < options_.min_active) return;
    float least = best_ - static_cast<float>(options_.beam);
    if (cut_ < kLevels - 1)
        least = std::max(least, top_ - static_cast<float>(cut_ + 1) / kLevelsPerUnit);
    least_ = std::max(least_, least);
    least_word_ = best_ - static_cast<float>(options_.word_beam * options_.beam);
}

// Add a hypothesis to those that reach the next frame, or join it with the one of the same state.
// Open addressing by a stamp: a new frame empties the table by counting on, without touching it.
void Search::insert(const Hypothesis& hypothesis) {
    if (hypothesis.score < least_ || hypothesis.score == kNever) return;
    std::uint64_t key = pair_key(hypothesis.context, hypothesis.position);
    std::size_t mask = slots_.size() - 1, at = hash_key(key) & mask;
    while (slots_[at].stamp == stamp_) {
        if (slots_[at].key == key) {
            Hypothesis& known = reached_[slots_[at].index];
            merge(known, hypothesis);
            if (known.score > best_) best_ = known.score;
            return;
        }
        at = (at + 1) & mask;
    }
    slots_[at] = {key, stamp_, static_cast<std::uint32_t>(reached_.size())};
    reached_.push_back(hypothesis);
    if (2 * reached_.size() > slots_.size()) grow_slots();
    count(hypothesis.score);
}

void Search::grow_slots() {
    slots_.assign(2 * slots_.size(), Slot{});
    std::size_t mask = slots_.size() - 1;
    for (std::uint32_t each = 0; each < reached_.size(); ++each) {
        std::uint64_t key = pair_key(reached_[each].context, reached_[each].position);
        std::size_t at = hash_key(key) & mask;
        while (slots_[at].stamp == stamp_) at = (at + 1) & mask;
        slots_[at] = {key, stamp_, each};
    }
}

// Join two sets of paths to the same state. The likelier set decides on `start`, and late scores
// are summed only where the last entry is the same: sums of different entries could not be told
// apart again.
void Search::merge(Hypothesis& known, const Hypothesis& hypothesis) const {
    if (hypothesis.late == known.late) {
        known.late_score = join(known.late_score, hypothesis.late_score);
    } else if (hypothesis.late > known.late) {
        known.late = hypothesis.late;
        known.late_score = hypothesis.late_score;
    }
    if (hypothesis.score > known.score) known.start = hypothesis.start;
    known.score = join(known.score, hypothesis.score);
}

// A hypothesis within a word goes on with the blank, or repeats its phoneme.
void Search::stay(const Hypothesis& hypothesis) {
    Hypothesis next = hypothesis;
    float blank = scores_[tokens_.blank()];
    // The lowest bit of a position within a word: 1 after the node's phoneme, 0 after a blank.
    next.position = hypothesis.position & ~1u;
    next.score = hypothesis.score + blank;
    next.late_score = hypothesis.late_score + blank;
    insert(next);
    if (hypothesis.position & 1u) {
        float again = scores_[vocabulary_.phoneme(hypothesis.position >> 1)];
        next.position = hypothesis.position;
        next.score = hypothesis.score + again;
        next.late_score = hypothesis.late_score + again;
        insert(next);
    }
}

// A hypothesis between words goes on with the blank, its word's last phoneme or SIL. After SIL no
// phoneme repeats, and the next word enters without `sil_cost`.
void Search::stay_between(const Hypothesis& hypothesis) {
    auto go = [&](std::uint32_t position, float added) {
        Hypothesis next{
            hypothesis.context, position, hypothesis.score + added, kNoNode, kNoNode, kNever};
        if (next.score == kNever) return;
        remember_stay(hypothesis.context, next.score);
        insert(next);
    };
    bool silent = hypothesis.position == in_sil() || hypothesis.position == after_sil_blank();
    go(silent ? after_sil_blank() : after_blank(), scores_[tokens_.blank()]);
    if (hypothesis.position < in_sil())
        go(hypothesis.position, scores_[hypothesis.position - kBetween]);
    go(in_sil(), scores_[tokens_.sil()]);
}

void Search::remember_stay(ContextId context, float score) {
    Use& used = use(context);
    used.stayed = used.stayed_frame == frame_ ? join(used.stayed, score) : score;
    used.stayed_frame = frame_;
}

// A hypothesis within a word takes each phoneme that the tree allows. Its score holds the
// look-ahead of its node: the best unigram below it, without which a long word, scored by the
// n-gram only at its end, would lose to short ones on the way. A step takes the old one out and
// puts the new in.
void Search::move(const Hypothesis& hypothesis) {
    NodeId number = hypothesis.position >> 1;
    TreeNode node = vocabulary_.node(number);
    if (ranked_masks_.empty()) return move_unmasked(hypothesis, node);
    std::uint64_t allowed = node.phonemes & likely(least_ - hypothesis.score);
    // CTC: the same phoneme again, with no blank between, is a repeat (`stay`) and not the next
    // one.
    if (hypothesis.position & 1u) allowed &= ~(std::uint64_t{1} << vocabulary_.phoneme(number));
    float before = (*ahead_)[number];
    for (; allowed; allowed &= allowed - 1) {
        auto phoneme = static_cast<std::uint8_t>(__builtin_ctzll(allowed));
        NodeId child = node.child(phoneme);
        float change = scores_[phoneme] - before;
        if (hypothesis.score + change + ahead_->bound(child) < least_) continue;
        reach({hypothesis.context, 0, hypothesis.score + change, hypothesis.start, hypothesis.late,
               hypothesis.late_score + change},
              child, phoneme);
    }
}

// `move` with more phonemes than a mask holds: each child is tried.
void Search::move_unmasked(const Hypothesis& hypothesis, const TreeNode& node) {
    NodeId number = hypothesis.position >> 1;
    const bool repeats = hypothesis.position & 1u;
    const float before = (*ahead_)[number];
    for (NodeId child = node.first_child; child < node.end_child; ++child) {
        std::uint8_t phoneme = vocabulary_.phoneme(child);
        if (repeats && phoneme == vocabulary_.phoneme(number)) continue;
        float change = scores_[phoneme] - before;
        if (hypothesis.score + change + ahead_->bound(child) < least_) continue;
        reach({hypothesis.context, 0, hypothesis.score + change, hypothesis.start, hypothesis.late,
               hypothesis.late_score + change},
              child, phoneme);
    }
}

// The phonemes that score at least so much in this frame, one bit each. What is below a node is
// worth no more than its look-ahead, so a hypothesis needs to try no others.
std::uint64_t Search::likely(float score) const {
    auto end = std::partition_point(ranked_.begin(), ranked_.end(),
                                    [score](const auto& each) { return each.first >= score; });
    return ranked_masks_[static_cast<std::size_t>(end - ranked_.begin())];
}

// A hypothesis between words begins one.
void Search::enter(const Hypothesis& hypothesis) {
    bool silent = hypothesis.position == in_sil() || hypothesis.position == after_sil_blank();
    if (!silent && options_.sil_required) return;
    float score = silent ? hypothesis.score : hypothesis.score - sil_cost_;
    LatticeNode start = boundary(hypothesis);
    float most = ahead_->highest();
    for (const auto& [added, phoneme] : ranked_) {
        float here = score + added;
        if (here + most < least_) break;
        if (hypothesis.position == after_phoneme(phoneme)) continue;  // a repeat, as in `move`
        for (std::size_t tree = 0; tree < 2; ++tree) {
            NodeId child = entries_[2 * std::size_t{phoneme} + tree];
            if (!child || here + ahead_->bound(child) < least_) continue;
            reach({hypothesis.context, 0, here, start, start, here}, child, phoneme);
        }
    }
}

// `from` has taken the phoneme of `child`; its score is without any look-ahead. A word that would
// not survive with its unigram is not looked up with its history: it only came so far by the
// look-ahead for more frequent ones.
void Search::reach(const Hypothesis& from, NodeId child, std::uint8_t phoneme) {
    TreeNode node = vocabulary_.node(child);
    for (std::uint32_t word = node.first_word; word < node.end_word; ++word) {
        float expected = from.score + ahead_->expected(word);
        if (expected >= least_ && expected + kHistoryGain >= least_word_)
            end_word(from, word, phoneme);
    }
    float ahead = (*ahead_)[child];
    if (node.is_leaf() || from.score + ahead < least_) return;
    insert({from.context, child << 1 | 1u, from.score + ahead, from.start, from.late,
            from.late_score + ahead});
}

// The last phoneme of a word is there, and with it what the n-gram gives the word.
void Search::end_word(const Hypothesis& from, std::uint32_t tree_word, std::uint8_t last) {
    float gain = ahead_->gain(tree_word);
    if (from.score + gain < least_) return;  // the n-gram only takes from that
    WordId word = vocabulary_.tree_word(tree_word).word;
    Contexts::Next next = contexts_.next(from.context, word);
    // The score holds what a hook added to the old context; it takes that of the new one instead.
    double more = contexts_[next.context].added - contexts_[from.context].added +
                  options_.lm_weight * next.log_prob;
    float added = gain + static_cast<float>(more), score = from.score + added;
    if (score < least_ || score < least_word_ || score == kNever) return;
    Use& used = use(next.context);
    if (used.ended_frame != frame_) {
        used.ended_frame = frame_;
        used.first_end = kLastEnd;
        ended_.push_back(next.context);
    }
    // A list for each context, linked by index through one array: nothing is allocated in a frame.
    ends_.push_back({next.context, word, score, from.start, from.late, from.late_score + added,
                     used.first_end});
    used.first_end = static_cast<std::uint32_t>(ends_.size() - 1);
    insert({next.context, after_phoneme(last), score, kNoNode, kNoNode, kNever});
}

// The score that survival takes, and how many of those that have just that survive.
float Search::survival(std::size_t& n_ties) {
    auto most = static_cast<std::size_t>(options_.max_active),
         fewest = static_cast<std::size_t>(options_.min_active);
    sorted_.clear();
    for (const Hypothesis& hypothesis : reached_) sorted_.push_back(hypothesis.score);
    auto best_of = [this](std::size_t rank) {  // selection is linear in the number, sorting not
        auto at = sorted_.begin() + static_cast<std::ptrdiff_t>(rank - 1);
        std::nth_element(sorted_.begin(), at, sorted_.end(), std::greater<>());
        return *at;
    };
    float least = best_ - static_cast<float>(options_.beam);
    n_ties = sorted_.size();
    auto n_within = static_cast<std::size_t>(std::count_if(
        sorted_.begin(), sorted_.end(), [least](float score) { return score >= least; }));
    if (n_within < fewest) {
        least = sorted_.size() <= fewest ? kNever : best_of(fewest);
        n_within = fewest;
    }
    if (n_within > most && sorted_.size() > most) {
        least = best_of(most);
        n_ties = most - static_cast<std::size_t>(
                            std::count_if(sorted_.begin(), sorted_.end(),
                                          [least](float score) { return score > least; }));
    }
    return least;
}

// Keep the survivors, roughly best first (so that the next frame soon knows what survival takes),
// their scores relative to the best.
void Search::prune() {
    std::size_t n_ties;
    float least = survival(n_ties);
    // A counting sort in steps of 1/4: no exact order is needed, only a good one.
    constexpr std::size_t kBuckets = 64;
    std::array<std::uint32_t, kBuckets + 1> starts{};
    auto bucket = [this](float score) {
        return static_cast<std::size_t>(
            std::min((best_ - score) * 4.0f, static_cast<float>(kBuckets - 1)));
    };
    order_.clear();
    for (std::uint32_t each = 0; each < reached_.size(); ++each) {
        float score = reached_[each].score;
        if (score < least || (score == least && n_ties == 0)) continue;
        if (score == least) --n_ties;
        order_.push_back(each);
        ++starts[bucket(score) + 1];
    }
    for (std::size_t each = 0; each < kBuckets; ++each) starts[each + 1] += starts[each];
    live_.resize(order_.size());
    for (std::uint32_t each : order_) {
        Hypothesis& hypothesis = live_[starts[bucket(reached_[each].score)]++];
        hypothesis = reached_[each];
        // Relative scores stay small however long the utterance is, so a float holds their
        // differences; the sum of what was taken off goes into `offset_`, a double.
        hypothesis.score -= best_;
        hypothesis.late_score -= best_;
        if (is_between(hypothesis.position)) uses_[hypothesis.context].between_frame = frame_;
    }
    offset_ += best_;
}

void Search::add_boundaries() {
    for (ContextId context : ended_) {
        if (uses_[context].between_frame == frame_) add_boundary(context);
    }
}

// One node for all words that ended in this frame and lead to this context, and for what was there
// before.
void Search::add_boundary(ContextId context) {
    Use& used = uses_[context];
    float total = used.stayed_frame == frame_ ? used.stayed : kNever, highest = total;
    for (std::uint32_t each = used.first_end; each != kLastEnd; each = ends_[each].next) {
        total = join(total, ends_[each].score);
        highest = std::max(highest, ends_[each].score);
    }
    float least = highest - static_cast<float>(options_.lattice_beam * options_.acoustic_scale);
    if (used.stayed_frame == frame_ && used.stayed >= least) {
        lattice_.add_arc(used.boundary, kNoWord, used.stayed - total);
    }
    for (std::uint32_t each = used.first_end; each != kLastEnd; each = ends_[each].next) {
        const End& end = ends_[each];
        if (end.score < least) continue;
        // A word with two entries gets an arc from each: the late one has its own paths, the other
        // what remains, log(exp(score) - exp(late)).
        float late = end.late == end.start ? end.score : end.late_score, others = end.score;
        if (late < end.score && options_.logadd) others += std::log1p(-std::exp(late - end.score));
        if (late >= least || late >= others) lattice_.add_arc(end.late, end.word, late - total);
        if (late < end.score && (others >= least || others > late)) {
            lattice_.add_arc(end.start, end.word, others - total);
        }
    }
    used.before = used.stayed_frame == frame_ ? used.boundary : kNoNode;
    used.boundary = lattice_.add_node(context, frame_);
    used.boundary_frame = frame_;
}

void Search::shrink_lattice() {
    std::vector<LatticeNode> nodes;
    std::vector<float> scores;
    for (const Hypothesis& hypothesis : live_) {
        if (is_between(hypothesis.position)) {
            nodes.push_back(boundary(hypothesis));
            scores.push_back(hypothesis.score);
            nodes.push_back(uses_[hypothesis.context].boundary);
            scores.push_back(hypothesis.score);
        } else {
            nodes.push_back(hypothesis.start);
            scores.push_back(hypothesis.score);
            nodes.push_back(hypothesis.late);
            scores.push_back(hypothesis.late_score);
        }
    }
    // Half of what is allowed, so that many frames pass before it is needed again.
    std::vector<LatticeNode> renumbered =
        lattice_.prune(nodes, scores, static_cast<std::size_t>(options_.max_arcs) / 2);
    std::vector<ContextId> between;
    for (Hypothesis& hypothesis : live_) {
        if (is_between(hypothesis.position)) {
            between.push_back(hypothesis.context);
        } else {
            hypothesis.start = renumbered[hypothesis.start];
            hypothesis.late = renumbered[hypothesis.late];
        }
    }
    std::sort(between.begin(), between.end());
    between.erase(std::unique(between.begin(), between.end()), between.end());
    for (ContextId context : between) {
        Use& used = uses_[context];
        used.boundary = renumbered[used.boundary];
        if (used.before != kNoNode && used.boundary_frame == frame_ - 1)
            used.before = renumbered[used.before];
    }
}

void Search::add_scores(const std::vector<ContextId>& contexts, const float* scores) {
    std::vector<double> got = contexts_.add_scores(contexts, scores);
    for (Hypothesis& hypothesis : live_) {
        auto score = static_cast<float>(got[hypothesis.context]);
        hypothesis.score += score;
        hypothesis.late_score += score;
    }
}

}  // namespace cortext
