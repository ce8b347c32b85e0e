#include "ngram.hpp"

#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <system_error>

#include "lm/binary_format.hh"
#include "lm/config.hh"
#include "lm/enumerate_vocab.hh"
#include "lm/model.hh"
#include "util/exception.hh"

namespace cortext {
namespace {

constexpr double kLn10 = 2.302585092994045684;
const char* const kKinds[] = {"probing", "rest_probing", "trie", "quant_trie", "array_trie", "quant_array_trie"};

lm::ngram::Config quiet_config() {
    lm::ngram::Config config;
    config.show_progress = false;
    config.messages = nullptr;
    config.unknown_missing = lm::SILENT;
    config.arpa_complain = lm::ngram::Config::NONE;
    config.load_method = util::LAZY;
    return config;
}

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

std::unique_ptr<lm::base::Model> load(const std::string& path, std::vector<std::string>* words) {
    lm::ngram::Config config = quiet_config();
    std::unique_ptr<CollectWords> collect;
    if (words) {
        collect = std::make_unique<CollectWords>(*words);
        config.enumerate_vocab = collect.get();
    }
    try {
        return std::unique_ptr<lm::base::Model>(lm::ngram::LoadVirtual(path.c_str(), config));
    } catch (const util::Exception& error) {
        throw ModelError(error.what(), path, "make the file again");
    }
}

}  // namespace

NGram::NGram(std::string path, std::string kind, std::uint64_t bytes)
    : path_(std::move(path)), kind_(std::move(kind)), bytes_(bytes) {}

NGram::~NGram() = default;

std::shared_ptr<const NGram> NGram::open(const std::string& path) {
    std::error_code failed;
    const std::uint64_t bytes = std::filesystem::file_size(path, failed);
    if (failed) throw ModelError("cannot read it: " + failed.message(), path);
    lm::ngram::ModelType type;
    bool binary = false;
    try {
        binary = lm::ngram::RecognizeBinary(path.c_str(), type);
    } catch (const util::Exception& error) {
        throw ModelError(error.what(), path, "make the file again");
    }
    std::shared_ptr<NGram> ngram(new NGram(path, binary ? kKinds[type] : "arpa", bytes));
    ngram->model_ = load(path, binary ? nullptr : &ngram->arpa_words_);
    ngram->counts_.resize(ngram->model_->Order());
    ngram->end_ = ngram->model_->BaseVocabulary().EndSentence();
    return ngram;
}

std::vector<std::string> NGram::words() const {
    if (!arpa_words_.empty()) return arpa_words_;
    std::vector<std::string> words;
    load(path_, &words);
    return words;
}

WordIndex NGram::index(std::string_view word) const {
    return model_->BaseVocabulary().Index(StringPiece(word.data(), word.size()));
}

NGramState NGram::begin() const { return *static_cast<const NGramState*>(model_->BeginSentenceMemory()); }

NGramState NGram::empty() const { return *static_cast<const NGramState*>(model_->NullContextMemory()); }

double NGram::score(const NGramState& in, WordIndex word, NGramState& out) const {
    return kLn10 * static_cast<double>(model_->BaseScore(&in, word, &out));
}

double NGram::end(const NGramState& in) const {
    NGramState out;
    return score(in, end_, out);
}

double NGram::unigram(WordIndex word) const {
    NGramState out;
    return score(empty(), word, out);
}

void write_binary(const std::string&, const std::string& out, const std::string&, int, int, int, std::uint64_t,
                  const std::string&) {
    throw ModelError("not written yet", out);
}

}  // namespace cortext
