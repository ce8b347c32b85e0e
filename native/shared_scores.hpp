// Sentences scored one after another, each going on from the words that it shares with the one
// before.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "sentence_frames.hpp"
#include "sentences.hpp"

namespace cortext {

// Scores sentences one after another; each goes on from the words that it shares with the one
// before.
class SharedScores {
public:
    static constexpr int kLongest = 64;  // tokens of a pronunciation that can be scored here

    // Memory that is given back in the opposite order.
    class Rows {
    public:
        struct Mark {
            std::size_t chunk, used;
        };
        double* reserve(std::size_t n_doubles);  // to be followed by `keep`
        void keep(std::size_t n_doubles) { end_.used += n_doubles; }
        Mark mark() const { return end_; }
        void rewind(Mark mark) { end_ = mark; }
        std::size_t n_chunks() const { return chunks_.size(); }

    private:
        struct Chunk {
            std::unique_ptr<double[]> doubles;
            std::size_t size;
        };
        std::vector<Chunk> chunks_;
        Mark end_{0, 0};
    };

    // One pronunciation of a word after the words before it: sums and maxima over all paths from
    // the start of the utterance into each of its states, for the frames from `low` on and before
    // `high`; outside they are zero. The states are its labels, the blank after each, SIL, and the
    // blank after SIL. Every frame has a row in the workspace: the maxima of the states, and four
    // values from which the next word goes on in the next frame, the cost of a boundary included:
    // sums from all states but the last label, from the last label (only if the word begins with
    // another), and maxima of them.
    struct Branch {
        const std::uint8_t* tokens;
        int n_tokens;  // 0: the start of the sentence, which has a blank, SIL and the blank after
                       // SIL
        double weight;
        double* rows;
        int low, high;
        double ended_sum;  // after the last frame

        int n_blanks() const { return n_tokens > 0 ? n_tokens : 1; }
        int last_blank() const { return n_tokens + n_blanks() - 1; }
        int sil() const { return n_tokens + n_blanks(); }
        int open_sum() const { return sil() + 2; }
        int label_sum() const { return sil() + 3; }
        int open_max() const { return sil() + 4; }
        int label_max() const { return sil() + 5; }
        int stride() const { return sil() + 6; }
        int last_token() const { return n_tokens > 0 ? tokens[n_tokens - 1] : -1; }
    };

    // Where a path is in one frame.
    struct PathPoint {
        int t, branch, state;
    };

    // A word after the words before it.
    struct Node {
        std::uint32_t spelling;
        std::size_t first_branch, end_branch;
        Rows::Mark rows;  // where those of its branches begin
        PathPoint left;   // the end of the word's part of the path that was traced last
    };

    // What is kept from one utterance to the next, so that nothing is allocated then.
    struct Workspace {
        Rows rows;
        std::vector<double> in_sum, in_max;
        std::vector<Branch> branches;
        std::vector<Node> nodes;
        std::vector<Span> spans;
        std::vector<std::uint8_t> direct;  // whether the traced path enters the word without SIL
    };

    SharedScores(const SentenceFrames& frames, const SentenceOptions& options, Workspace& work);

    // The paths of a sentence. False if too much of it may have been left out as improbable.
    //     spellings: a number for each word, equal for equal spellings
    //     lenient:   take it even so if there is anything
    bool score(const std::vector<const Spelling*>& words, const std::uint32_t* spellings,
               bool lenient, SentencePaths& paths);

private:
    void push(const Spelling& spelling, std::uint32_t number);
    void run_start(Branch& branch);
    bool enter(const Node& parent, Branch& branch);
    template <int N>
    void run(Branch& branch);
    template <int N, bool REPEATS>
    void run(Branch& branch);
    void reserve(Branch& branch);
    void keep(const Branch& branch);

    PathPoint best_end() const;
    void trace(PathPoint point);
    PathPoint enter_word(PathPoint point, const Node& parent, Span& span, bool& direct) const;
    double best_exit(const Node& parent, int t, int next_token, PathPoint& from) const;

    double* row(const Branch& branch, int t) const {
        return branch.rows + (t - branch.low) * branch.stride();
    }
    double at(const Branch& branch, int t, int value) const {
        return t < branch.low || t >= branch.high ? 0.0 : row(branch, t)[value];
    }
    const Branch& branch_at(int number) const {
        return work_.branches[static_cast<std::size_t>(number)];
    }

    const SentenceFrames& frames_;
    const SentenceOptions& options_;
    const int P_;
    const double direct_;  // factor on entering a word without SIL
    Workspace& work_;
};

}  // namespace cortext
