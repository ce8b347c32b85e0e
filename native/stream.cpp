#include "stream.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "lattice_paths.hpp"
#include "log_add.hpp"

namespace cortext {

namespace {

constexpr std::size_t kMostLookAheads = 4;
// Frames by which paths may differ on when the same word was said.
constexpr std::int32_t kSlack = 3;
constexpr double kMostOfAWord = 20.0;  // any score may be asked for, and e^-1000 is no weight
constexpr double kCeiling = 1.0;       // a log-probability is not above 0, but for rounding
constexpr float kNever = -std::numeric_limits<float>::infinity();

// A number of a message that was received may lie at any address.
double number(const float* from) {
    float found;
    std::memcpy(&found, from, sizeof found);
    return found;
}

// Number of sentences to take from the lattice. Its scores are close to the exact ones but not
// equal, so a few more than asked for are scored, and the best of them are kept: at least 20, or a
// list of one would have another best sentence than a list of ten where many are alike.
std::size_t n_to_score(int nbest) {
    const auto n = static_cast<std::size_t>(nbest);
    return std::max<std::size_t>(n + n / 4 + 8, 20);
}

}  // namespace

bool Frames::add(const float* log_probs, const Options& options) {
    auto blank = static_cast<std::size_t>(tokens_.blank());
    std::size_t first = scores_.size();
    scores_.resize(first + width());
    for (std::size_t token = 0; token < width(); ++token) {
        if (columns_[token] < 0) {
            scores_[first + token] = -std::numeric_limits<double>::infinity();
            continue;
        }
        // Whatever the array holds (another thread may write into it): NaN becomes the floor, too,
        // as std::max returns its first argument where the comparison fails.
        double log_prob = std::min(std::max(kFloor, number(log_probs + columns_[token])), kCeiling);
        scores_[first + token] = (log_prob - options.offsets[token]) * options.acoustic_scale;
    }
    // The model's own probability counts here, not what the penalty leaves of it: with the default
    // penalty of 32 no blank would be sure.
    bool only_blank = options.blank_skip < 1.0 &&
                      std::exp(number(log_probs + columns_[blank])) >= options.blank_skip;
    if (only_blank) {
        std::fill_n(scores_.begin() + static_cast<std::ptrdiff_t>(first), blank,
                    -std::numeric_limits<double>::infinity());
    }
    return only_blank;
}

Model::Model(std::shared_ptr<const Vocabulary> vocabulary, Tokens tokens)
    : vocabulary_(std::move(vocabulary)), tokens_(tokens) {}

std::shared_ptr<const LookAhead> Model::look_ahead(const Options& options) const {
    LookAhead::Weights weights{options.lm_weight, options.word_score, options.unk_score,
                               options.acoustic_scale};
    // Making one visits every node of the tree, so the last few are kept, for all threads.
    std::lock_guard<std::mutex> lock(mutex_);
    for (const auto& known : look_aheads_) {
        if (known->weights() == weights) return known;
    }
    if (look_aheads_.size() >= kMostLookAheads) look_aheads_.erase(look_aheads_.begin());
    look_aheads_.push_back(std::make_shared<LookAhead>(*vocabulary_, weights));
    return look_aheads_.back();
}

double Model::lm_score(const std::vector<WordId>& words, const Options& options,
                       const NGram& ngram) const {
    NGramState state = ngram.begin(), next;
    double sum = 0.0;
    bool own = &ngram == &vocabulary_->ngram();
    for (WordId word : words) {
        WordIndex index =
            own ? vocabulary_->ngram_word(word) : ngram.index(vocabulary_->text(word));
        sum += ngram.score(state, index, next) + (index == 0 ? options.unk_score : 0.0);
        state = next;
    }
    return sum + ngram.end(state);
}

// What a word of the sentence scores without its frames, on average, within bounds.
double Model::word_mean(const std::vector<WordId>& words, const Options& options,
                        const NGram& ngram) const {
    if (words.empty()) return 0.0;
    double sum = options.lm_weight * lm_score(words, options, ngram);
    for (WordId word : words) sum += options.word_score + vocabulary_->bonus(word);
    return std::clamp(sum / static_cast<double>(words.size()), -kMostOfAWord, kMostOfAWord);
}

std::vector<NBestEntry> Model::score(const std::vector<std::vector<WordId>>& sentences,
                                     const Frames& frames, const Options& options,
                                     const NGram& ngram) const {
    // What the best sentence's words add to its frames, each, is in the pronunciations' weights
    // until all frames are summed up: else the likeliest beginnings of a long sentence would hurry
    // ahead, and those that its end needs would get too small beside them.
    const double per_word = word_mean(sentences.front(), options, ngram);
    std::unordered_map<WordId, Spelling> spellings;
    for (const auto& words : sentences) {
        for (WordId word : words) {
            auto [known, is_new] = spellings.try_emplace(word);
            if (!is_new) continue;
            known->second = vocabulary_->spelling(word);
            for (Pronunciation& each : known->second)
                each.log_weight += per_word / options.acoustic_scale;
        }
    }
    std::vector<std::vector<const Spelling*>> spelt;
    for (const auto& words : sentences) {
        spelt.emplace_back();
        for (WordId word : words) spelt.back().push_back(&spellings[word]);
    }
    SentenceOptions how{};
    how.acoustic_scale = options.acoustic_scale;
    how.sil_cost = options.sil_cost;
    how.logadd = options.logadd;
    how.sil_required = options.sil_required;
    how.blank = tokens_.blank();
    how.sil = tokens_.sil();
    std::vector<SentencePaths> paths =
        score_sentences(spelt, frames.data(), frames.size(), frames.width(), how);
    std::vector<NBestEntry> hypotheses;
    for (std::size_t each = 0; each < sentences.size(); ++each) {
        if (paths[each].score == -std::numeric_limits<double>::infinity()) continue;
        NBestEntry found{sentences[each],
                         paths[each].score,
                         0.0,
                         0.0,
                         0.0,
                         0.0,
                         std::move(paths[each].spans),
                         {}};
        found.lm_score = lm_score(found.words, options, ngram);
        found.sil_score = 0.0 - options.sil_cost * paths[each].boundaries;
        for (WordId word : found.words) found.hotword_score += vocabulary_->bonus(word);
        found.score += options.lm_weight * found.lm_score + found.hotword_score +
                       (options.word_score - per_word) * static_cast<double>(found.words.size());
        hypotheses.push_back(std::move(found));
    }
    return hypotheses;
}

Stream::Stream(std::shared_ptr<const Model> model, const Options& options, std::vector<int> columns,
               std::shared_ptr<const NGram> second, bool has_hook)
    : model_(std::move(model)),
      options_(options),
      second_(std::move(second)),
      has_hook_(has_hook),
      frames_(model_->tokens(), std::move(columns)),
      search_(model_->shared_vocabulary(), options, model_->look_ahead(options), model_->tokens()),
      row_(static_cast<std::size_t>(model_->tokens().count())) {}

void Stream::set_options(const Options& options) {
    options_ = options;
    search_.set_options(options_, model_->look_ahead(options_));
}

void Stream::advance(const float* log_probs, std::size_t n_frames) {
    for (std::size_t frame = 0; frame < n_frames; ++frame) {
        bool only_blank = frames_.add(log_probs + frame * frames_.n_columns(), options_);
        const double* scores = frames_.last();
        if (only_blank) {
            search_.advance_blank(static_cast<float>(scores[model_->tokens().blank()]));
        } else {
            std::transform(scores, scores + row_.size(), row_.begin(),
                           [](double s) { return static_cast<float>(s); });
            search_.advance(row_.data());
        }
    }
}

std::pair<std::vector<WordId>, std::vector<WordId>> Stream::partial() {
    std::vector<LatticeNode> nodes;
    for (const Search::Hypothesis& hypothesis : search_.live()) {
        if (search_.is_between(hypothesis.position)) {
            nodes.push_back(search_.boundary(hypothesis));
        } else {
            nodes.push_back(hypothesis.start);
            nodes.push_back(hypothesis.late);
        }
    }
    auto best = std::max_element(search_.live().begin(), search_.live().end(),
                                 [](const auto& a, const auto& b) { return a.score < b.score; });
    bool between = search_.is_between(best->position);
    std::vector<WordId> words =
        search_.lattice().best_words(between ? search_.boundary(*best) : best->start);
    std::vector<WordId> stable = search_.lattice().common_words(nodes);
    return {stable, {words.begin() + static_cast<std::ptrdiff_t>(stable.size()), words.end()}};
}

// The scores within a word hold the look-ahead, which is a guess of ours: it is taken out for a
// hook.
Stream::Live Stream::live() {
    Live live;
    std::vector<double> scores;
    std::unordered_map<ContextId, std::size_t> places;
    for (const Search::Hypothesis& hypothesis : search_.live()) {
        bool between = search_.is_between(hypothesis.position);
        double score = search_.offset() + hypothesis.score - search_.ahead_of(hypothesis);
        auto [place, is_new] = places.try_emplace(hypothesis.context, live.ids.size());
        if (is_new) {
            const Contexts::Context& context = search_.contexts()[hypothesis.context];
            live.ids.push_back(hypothesis.context);
            live.parent_ids.push_back(context.parent);
            live.words.push_back(search_.lattice().best_words(between ? search_.boundary(hypothesis)
                                                                      : hypothesis.start));
            scores.push_back(score);
            live.added.push_back(static_cast<float>(context.added));
        } else {
            scores[place->second] = std::max(scores[place->second], score);
        }
    }
    for (std::size_t each = 0; each < live.ids.size(); ++each) {
        double lm = 0.0, rest = search_.contexts()[live.ids[each]].added;
        ContextId context = Contexts::kBegin;
        for (WordId word : live.words[each]) {
            Contexts::Next next = search_.contexts().next(context, word);
            lm += next.log_prob +
                  (model_->vocabulary().ngram_word(word) == 0 ? options_.unk_score : 0.0);
            rest += options_.word_score + model_->vocabulary().bonus(word);
            context = next.context;
        }
        live.lm.push_back(static_cast<float>(lm));
        double acoustic = (scores[each] - rest - options_.lm_weight * lm) / options_.acoustic_scale;
        live.acoustic.push_back(static_cast<float>(acoustic));
    }
    return live;
}

void Stream::add_scores(const std::vector<std::uint32_t>& ids, const float* scores) {
    search_.add_scores(ids, scores);
}

// The last node: arcs from all contexts that are between words, or if none is, from where the
// unfinished words began.
void Stream::end_lattice() {
    Lattice& lattice = search_.lattice();
    std::unordered_map<LatticeNode, float> ends;
    auto add = [&](LatticeNode node, ContextId context, float score) {
        score += static_cast<float>(options_.lm_weight * search_.contexts().end(context));
        auto [end, is_new] = ends.try_emplace(node, score);
        if (is_new) return;
        end->second = options_.logadd ? static_cast<float>(log_add(end->second, score))
                                      : std::max(end->second, score);
    };
    for (const Search::Hypothesis& hypothesis : search_.live()) {
        if (search_.is_between(hypothesis.position))
            add(search_.boundary(hypothesis), hypothesis.context, hypothesis.score);
    }
    if (ends.empty()) {
        for (const Search::Hypothesis& hypothesis : search_.live()) {
            float ahead = search_.ahead_of(hypothesis);
            add(hypothesis.start, hypothesis.context, hypothesis.score - ahead);
            if (hypothesis.late != hypothesis.start)
                add(hypothesis.late, hypothesis.context, hypothesis.late_score - ahead);
        }
    }
    std::vector<std::pair<LatticeNode, float>> sorted(ends.begin(), ends.end());
    std::sort(sorted.begin(), sorted.end());
    float highest = kNever;
    for (const auto& [node, score] : sorted) highest = std::max(highest, score);
    for (const auto& [node, score] : sorted) lattice.add_arc(node, kNoWord, score - highest);
    lattice.add_node(Contexts::kBegin, search_.n_frames());
}

double Stream::added_score(const std::vector<WordId>& words) {
    ContextId context = Contexts::kBegin;
    for (WordId word : words) context = search_.contexts().next(context, word).context;
    return search_.contexts()[context].added;
}

// Where other paths may end the word that a hypothesis has at `spans[each]`: a few frames around
// it, but nearer to it than to another occurrence of the word.
Span Stream::vicinity(const NBestEntry& found, std::size_t each) {
    const std::vector<Span>& spans = found.spans;
    Span around{spans[each].first - kSlack, spans[each].end + kSlack};
    for (std::size_t other = each; other-- > 0 && spans[other].end + kSlack > around.first;) {
        if (found.words[other] != found.words[each]) continue;
        around.first = std::max(around.first, (spans[other].end + spans[each].end + 1) / 2);
        break;
    }
    for (std::size_t other = each + 1;
         other < spans.size() && spans[other].first - kSlack < around.end; ++other) {
        if (found.words[other] != found.words[each]) continue;
        around.end = std::min(around.end, (spans[each].end + spans[other].end + 1) / 2);
        break;
    }
    return around;
}

void Stream::add_confidences(std::vector<NBestEntry>& hypotheses, const Lattice& lattice) {
    WordPosteriors posterior(lattice);
    for (NBestEntry& found : hypotheses) {
        for (std::size_t each = 0; each < found.words.size(); ++each) {
            Span around = vicinity(found, each);
            found.confidences.push_back(posterior(found.words[each], around.first, around.end));
        }
    }
}

std::vector<NBestEntry> Stream::finish() {
    end_lattice();
    Lattice other;
    const Lattice* lattice = &search_.lattice();
    if (second_) {
        other = rescored(search_.lattice(), search_.contexts(), *second_, options_);
        lattice = &other;
    }
    auto sentences = best_sentences(*lattice, n_to_score(options_.nbest),
                                    options_.lattice_beam * options_.acoustic_scale);
    std::vector<NBestEntry> hypotheses = ranked(sentences);
    add_confidences(hypotheses, *lattice);
    return hypotheses;
}

// Where no sentence fits into the frames: perhaps silence was required only after words had been
// said without. Or the lattice, whose nodes do not tell whether the last word has only just ended,
// made sentences of more words than there is time for; then what they begin with has to do.
std::vector<NBestEntry> Stream::fitting(const std::vector<std::vector<WordId>>& sentences,
                                        const NGram& ngram) {
    Options lenient = options_;
    lenient.sil_required = false;
    Lattice& lattice = search_.lattice();
    std::vector<NBestEntry> hypotheses = model_->score(sentences, frames_, lenient, ngram);
    for (const std::vector<WordId>& words :
         {lattice.common_words({lattice.size() - 1}), std::vector<WordId>{}}) {
        if (hypotheses.empty()) hypotheses = model_->score({words}, frames_, lenient, ngram);
    }
    return hypotheses;
}

// The best of the sentences by their exact scores, best first.
std::vector<NBestEntry> Stream::ranked(const std::vector<std::vector<WordId>>& sentences) {
    const NGram& ngram = second_ ? *second_ : model_->vocabulary().ngram();
    std::vector<NBestEntry> hypotheses = model_->score(sentences, frames_, options_, ngram);
    if (hypotheses.empty()) hypotheses = fitting(sentences, ngram);
    if (has_hook_) {
        for (NBestEntry& found : hypotheses) {
            found.added_score = added_score(found.words);
            found.score += found.added_score;
        }
    }
    // Equal scores, as of homophones that the n-gram does not know, are put in the order of their
    // texts, so that the list does not hang on the order in which the lattice gave them.
    auto text = [this](const NBestEntry& found) {
        std::string joined;
        for (WordId word : found.words) joined.append(model_->vocabulary().text(word)).append(" ");
        return joined;
    };
    std::sort(hypotheses.begin(), hypotheses.end(), [&](const NBestEntry& a, const NBestEntry& b) {
        return a.score != b.score ? a.score > b.score : text(a) < text(b);
    });
    if (hypotheses.size() > static_cast<std::size_t>(options_.nbest)) {
        hypotheses.resize(static_cast<std::size_t>(options_.nbest));
    }
    return hypotheses;
}

}  // namespace cortext
