#include "ngram.hpp"

#include <algorithm>

#include "lm/config.hh"
#include "lm/enumerate_vocab.hh"
#include "lm/model.hh"
#include "util/exception.hh"

namespace cortext {
namespace {

constexpr double kLn10 = 2.302585092994045684;

// No score of a sound file is outside of these; NaN, of a damaged one, becomes the lower.
constexpr float kLowest = -1e4f, kHighest = 1e4f;

// Collects the words while KenLM reads them.
class CollectWords : public lm::EnumerateVocab {
public:
    explicit CollectWords(std::vector<std::string>& words) : words_(words) {}
    void Add(WordIndex index, const StringPiece& word) override {
        if (index >= words_.size()) words_.resize(index + 1);
        words_[index].assign(word.data(), word.size());
    }

private:
    std::vector<std::string>& words_;
};

std::unique_ptr<lm::base::Model> load(const std::string& path, const NGramFile& file,
                                      std::vector<std::string>* words) {
    lm::ngram::Config config;
    config.show_progress = false;
    config.messages = nullptr;
    config.unknown_missing = lm::SILENT;
    config.arpa_complain = lm::ngram::Config::NONE;
    config.load_method = util::LAZY;
    std::unique_ptr<CollectWords> collect;
    if (words) {
        collect = std::make_unique<CollectWords>(*words);
        config.enumerate_vocab = collect.get();
    }
    const KenlmArpa arpa(path, file.binary ? KENLM_MAX_ORDER : file.counts.size());
    try {
        return std::unique_ptr<lm::base::Model>(lm::ngram::LoadVirtual(arpa.path(), config));
    } catch (const std::exception& error) {
        rethrow_kenlm(error, path, file.binary, arpa.inserted());
    }
}

}  // namespace

NGram::NGram(std::string path, NGramFile file) : path_(std::move(path)), file_(std::move(file)) {
    model_ = load(path_, file_, file_.binary ? nullptr : &arpa_words_);
    end_ = model_->BaseVocabulary().EndSentence();
    if (end_ == 0 || model_->BaseVocabulary().BeginSentence() == 0) {
        throw ModelError("no <s> and </s> among its words", path_,
                         "build the model from sentences with their ends");
    }
}

NGram::~NGram() = default;

std::shared_ptr<const NGram> NGram::open(const std::string& path) {
    return std::shared_ptr<const NGram>(new NGram(path, check_ngram_file(path)));
}

std::vector<std::string> NGram::words() const {
    if (!file_.binary) return arpa_words_;
    std::vector<std::string> words;
    load(path_, file_, &words);
    return words;
}

WordIndex NGram::index(std::string_view word) const {
    return model_->BaseVocabulary().Index(StringPiece(word.data(), word.size()));
}

NGramState NGram::begin() const {
    return *static_cast<const NGramState*>(model_->BeginSentenceMemory());
}

NGramState NGram::empty() const {
    return *static_cast<const NGramState*>(model_->NullContextMemory());
}

double NGram::score(const NGramState& in, WordIndex word, NGramState& out) const {
    const float log10 = model_->BaseScore(&in, word, &out);
    return kLn10 * static_cast<double>(log10 > kLowest ? std::min(log10, kHighest) : kLowest);
}

double NGram::end(const NGramState& in) const {
    NGramState out;
    return score(in, end_, out);
}

double NGram::unigram(WordIndex word) const {
    NGramState out;
    return score(empty(), word, out);
}

}  // namespace cortext
