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
// By how much a word's history is taken to raise its unigram score, at most, where that decides
// whether it is looked up.
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
        for (NodeId child = root.first_child; child < root.end_child(); ++child) {
            entries_[2 * std::size_t{vocabulary_.phoneme(child)} + tree] = child;
        }
    }
    use(Contexts::kBegin).boundary = 0;
    live_.push_back({Contexts::kBegin, after_sil_blank(), 0.0f, kNoNode, kNoNode, kNever});
    set_options(options, std::move(ahead));
}

void Search::set_options(const Options& options, std::shared_ptr<const LookAhead> ahead) {
    for (Token& token : live_) {  // the look-ahead in the scores is that of the old options
        if (is_between(token.position)) continue;
        float change = (*ahead)[token.position >> 1] - (*ahead_)[token.position >> 1];
        token.score += change;
        token.late_score += change;
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
    ranked_.clear();
    for (int phoneme = 0; phoneme < tokens_.n_phonemes; ++phoneme) {
        if (scores[phoneme] > kNever)
            ranked_.emplace_back(scores[phoneme], static_cast<std::uint8_t>(phoneme));
    }
    std::sort(ranked_.begin(), ranked_.end(), std::greater<>());
    ranked_masks_.assign(1, 0);
    for (const auto& each : ranked_)
        ranked_masks_.push_back(ranked_masks_.back() | std::uint64_t{1} << each.second);
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
    std::fill(std::begin(bins_), std::end(bins_), 0);
    cut_ = kBins - 1;
    within_ = 0;
}

void Search::advance(const float* scores) {
    only_blanks_ = false;
    advance_within(scores);
}

void Search::advance_blank(float score) {
    if (only_blanks_) {  // then another blank changes nothing
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
    for (const Token& token : live_) {
        is_between(token.position) ? stay_between(token) : stay(token);
    }
    for (const Token& token : live_) {
        is_between(token.position) ? enter(token) : move(token);
    }
    prune();
    add_boundaries();
    ++frame_;
    if (lattice_.n_arcs() > static_cast<std::size_t>(options_.max_arcs)) shrink_lattice();
}

// Raise what survival takes: a hypothesis must be within the beam of the best, and among the
// max_active best, which a histogram of the scores bounds from below. More hypotheses can only
// raise it, so who is below it can go at once.
void Search::count(float score) {
    if (score > best_) best_ = score;
    auto bin = static_cast<int>(
        std::clamp((top_ - score) * kBinsPerUnit, 0.0f, static_cast<float>(kBins - 1)));
    ++bins_[bin];
    if (bin > cut_) return;
    ++within_;
    while (cut_ > 0 && within_ - bins_[cut_] >= options_.max_active) within_ -= bins_[cut_--];
    if (static_cast<int>(reached_.size()) < options_.min_active) return;
    float least = best_ - static_cast<float>(options_.beam);
    if (cut_ < kBins - 1)
        least = std::max(least, top_ - static_cast<float>(cut_ + 1) / kBinsPerUnit);
    least_ = std::max(least_, least);
    least_word_ = best_ - static_cast<float>(options_.word_beam * options_.beam);
}

void Search::insert(const Token& token) {
    if (token.score < least_ || token.score == kNever) return;
    std::uint64_t key = pair_key(token.context, token.position);
    std::size_t mask = slots_.size() - 1, at = hash_key(key) & mask;
    while (slots_[at].stamp == stamp_) {
        if (slots_[at].key == key) {
            Token& known = reached_[slots_[at].token];
            merge(known, token);
            if (known.score > best_) best_ = known.score;
            return;
        }
        at = (at + 1) & mask;
    }
    slots_[at] = {key, stamp_, static_cast<std::uint32_t>(reached_.size())};
    reached_.push_back(token);
    if (2 * reached_.size() > slots_.size()) grow_slots();
    count(token.score);
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

void Search::merge(Token& known, const Token& token) const {
    if (token.late == known.late) {
        known.late_score = join(known.late_score, token.late_score);
    } else if (token.late > known.late) {
        known.late = token.late;
        known.late_score = token.late_score;
    }
    if (token.score > known.score) known.start = token.start;
    known.score = join(known.score, token.score);
}

// A hypothesis within a word goes on with the blank, or repeats its phoneme.
void Search::stay(const Token& token) {
    Token next = token;
    float blank = scores_[tokens_.blank()];
    next.position = token.position & ~1u;
    next.score = token.score + blank;
    next.late_score = token.late_score + blank;
    insert(next);
    if (token.position & 1u) {
        float again = scores_[vocabulary_.phoneme(token.position >> 1)];
        next.position = token.position;
        next.score = token.score + again;
        next.late_score = token.late_score + again;
        insert(next);
    }
}

void Search::stay_between(const Token& token) {
    auto go = [&](std::uint32_t position, float added) {
        Token next{token.context, position, token.score + added, kNoNode, kNoNode, kNever};
        if (next.score == kNever) return;
        remember_stay(token.context, next.score);
        insert(next);
    };
    bool silent = token.position == in_sil() || token.position == after_sil_blank();
    go(silent ? after_sil_blank() : after_blank(), scores_[tokens_.blank()]);
    if (token.position < in_sil()) go(token.position, scores_[token.position - kBetween]);
    go(in_sil(), scores_[tokens_.sil()]);
}

void Search::remember_stay(ContextId context, float score) {
    Use& used = use(context);
    used.stayed = used.stayed_frame == frame_ ? join(used.stayed, score) : score;
    used.stayed_frame = frame_;
}

// A hypothesis within a word takes each phoneme that the tree allows.
void Search::move(const Token& token) {
    NodeId number = token.position >> 1;
    TreeNode node = vocabulary_.node(number);
    std::uint64_t allowed = node.phonemes & likely(least_ - token.score);
    if (token.position & 1u) allowed &= ~(std::uint64_t{1} << vocabulary_.phoneme(number));
    float before = (*ahead_)[number];
    for (; allowed; allowed &= allowed - 1) {
        auto phoneme = static_cast<std::uint8_t>(__builtin_ctzll(allowed));
        NodeId child = node.child(phoneme);
        float change = scores_[phoneme] - before;
        if (token.score + change + ahead_->bound(child) < least_) continue;
        reach({token.context, 0, token.score + change, token.start, token.late,
               token.late_score + change},
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
void Search::enter(const Token& token) {
    bool silent = token.position == in_sil() || token.position == after_sil_blank();
    if (!silent && options_.sil_required) return;
    float score = silent ? token.score : token.score - sil_cost_;
    LatticeNode start = boundary(token);
    float most = ahead_->highest();
    for (const auto& [added, phoneme] : ranked_) {
        float here = score + added;
        if (here + most < least_) break;
        if (token.position == after_phoneme(phoneme)) continue;
        for (std::size_t tree = 0; tree < 2; ++tree) {
            NodeId child = entries_[2 * std::size_t{phoneme} + tree];
            if (!child || here + ahead_->bound(child) < least_) continue;
            reach({token.context, 0, here, start, start, here}, child, phoneme);
        }
    }
}

// `from` has taken the phoneme of `child`; its score is without any look-ahead. A word that would
// not survive with its unigram is not looked up with its history: it only came so far by the
// look-ahead for more frequent ones.
void Search::reach(const Token& from, NodeId child, std::uint8_t phoneme) {
    TreeNode node = vocabulary_.node(child);
    for (std::uint32_t word = node.first_word; word < node.end_word; ++word) {
        float expected = from.score + ahead_->expected(word);
        if (expected >= least_ && expected + kHistoryGain >= least_word_)
            end_word(from, word, phoneme);
    }
    float ahead = (*ahead_)[child];
    if (node.phonemes == 0 || from.score + ahead < least_) return;
    insert({from.context, child << 1 | 1u, from.score + ahead, from.start, from.late,
            from.late_score + ahead});
}

// The last phoneme of a word is there, and with it what the n-gram gives the word.
void Search::end_word(const Token& from, std::uint32_t tree_word, std::uint8_t last) {
    float gain = ahead_->gain(tree_word);
    if (from.score + gain < least_) return;  // the n-gram only takes from that
    WordId word = vocabulary_.tree_word(tree_word).word;
    Contexts::Next next = contexts_.next(from.context, word);
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
    for (const Token& token : reached_) sorted_.push_back(token.score);
    auto best_of = [this](std::size_t rank) {
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
        Token& token = live_[starts[bucket(reached_[each].score)]++];
        token = reached_[each];
        token.score -= best_;
        token.late_score -= best_;
        if (is_between(token.position)) uses_[token.context].between_frame = frame_;
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
    for (const Token& token : live_) {
        if (is_between(token.position)) {
            nodes.push_back(boundary(token));
            scores.push_back(token.score);
            nodes.push_back(uses_[token.context].boundary);
            scores.push_back(token.score);
        } else {
            nodes.push_back(token.start);
            scores.push_back(token.score);
            nodes.push_back(token.late);
            scores.push_back(token.late_score);
        }
    }
    std::vector<LatticeNode> renumbered =
        lattice_.prune(nodes, scores, static_cast<std::size_t>(options_.max_arcs) / 2);
    std::vector<ContextId> between;
    for (Token& token : live_) {
        if (is_between(token.position)) {
            between.push_back(token.context);
        } else {
            token.start = renumbered[token.start];
            token.late = renumbered[token.late];
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
    for (Token& token : live_) {
        auto score = static_cast<float>(got[token.context]);
        token.score += score;
        token.late_score += score;
    }
}

}  // namespace cortext
