// The search through one utterance: a CTC prefix beam search over the lexicon tree with an n-gram,
// frame by frame (80 ms of logits). It works by token passing (Young et al., 1989), whose "tokens"
// are called hypotheses here: a token is a class of the acoustic model.
//
// What a path and its score are is defined in cortext/decoding/nbest.py. A hypothesis is a
// position and a context (the words before, as far as the n-gram or `history_words` tells them
// apart). Paths that meet in both are joined (state recombination): whatever follows adds the same
// to either, so only the lattice needs to remember that there were two. Positions are the nodes of
// the tree, each after a blank or after its own phoneme, since CTC takes a repeated phoneme for a
// new one only after a blank; and those between words: directly after a word's last phoneme, after
// a blank that followed it, in SIL, and after a blank that followed that.
//
// Each frame goes through the same steps: `stay` (blank or repeated token), `move` and `enter` (the
// next phoneme), `end_word` (the n-gram's score), `prune`, and `add_boundaries` (the lattice).
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "contexts.hpp"
#include "lattice.hpp"
#include "lexicon.hpp"
#include "options.hpp"

namespace cortext {

// The engine's own numbers of tokens: phonemes from 0, then what stands between words (here SIL,
// whatever the inventory calls it), then the blank. Where nothing stands between words SIL is there
// all the same, and impossible: its score is -infinity in every frame.
struct Tokens {
    int n_phonemes;
    bool has_sil;
    int sil() const { return n_phonemes; }
    int blank() const { return n_phonemes + 1; }
    int count() const { return n_phonemes + 2; }
    int n_columns() const { return n_phonemes + 1 + has_sil; }  // of log-probabilities
};

class Search {
public:
    struct Hypothesis {
        ContextId context;
        std::uint32_t position;
        float score;  // relative to the best of the frame before
        // Joining paths forgets where each of them entered the word. Two entries are kept, so that
        // the lattice has the best and the last boundary in time; one would lose alternatives.
        LatticeNode start;  // where the likelier of the joined paths entered the word
        LatticeNode late;   // the last where any did
        float late_score;   // joined score of the paths that entered there
    };

    Search(std::shared_ptr<const Vocabulary> vocabulary, const Options& options,
           std::shared_ptr<const LookAhead> ahead, Tokens tokens);

    // Options take effect with the next frame. `ahead` goes with the options' weights.
    void set_options(const Options& options, std::shared_ptr<const LookAhead> ahead);

    // Take in a frame of scaled scores, one per token in the engine's order.
    void advance(const float* scores);
    // Take in a frame in which only the blank is possible.
    void advance_blank(float score);

    int n_frames() const { return frame_; }
    double offset() const { return offset_; }  // the scores' zero
    const std::vector<Hypothesis>& live() const { return live_; }
    bool is_between(std::uint32_t position) const { return position >= kBetween; }
    // The lattice node of a hypothesis between words. One that is silent now was between words
    // before this frame's ends.
    LatticeNode boundary(const Hypothesis& hypothesis) const {
        const Use& used = uses_[hypothesis.context];
        return hypothesis.position >= in_sil() && used.boundary_frame == frame_ - 1 ? used.before
                                                                                    : used.boundary;
    }
    float ahead_of(const Hypothesis& hypothesis) const {
        return is_between(hypothesis.position) ? 0.0f : (*ahead_)[hypothesis.position >> 1];
    }
    Lattice& lattice() { return lattice_; }
    Contexts& contexts() { return contexts_; }

    // Add to the scores of contexts' hypotheses, now and whenever more come of them.
    void add_scores(const std::vector<ContextId>& contexts, const float* scores);

private:
    static constexpr std::uint32_t kBetween =
        0xFFFFFF00u;  // plus what the last token was, see below
    // The histogram of a frame's scores: 32 natural-log units in steps of 1/8.
    static constexpr int kLevels = 256;
    static constexpr float kLevelsPerUnit = 8.0f;

    // A context's lattice nodes, and what its hypotheses did in the current frame.
    struct Use {
        LatticeNode boundary = kNoNode;
        LatticeNode before =
            kNoNode;  // the boundary before that; for who has not just ended a word
        std::int32_t boundary_frame = -2;  // the frame that `boundary` is of
        std::int32_t stayed_frame = -1;    // the frame that `stayed` is of
        std::int32_t ended_frame = -1;     // the frame that `first_end` is of
        std::int32_t between_frame =
            -1;               // the last frame that a hypothesis between words lived through
        float stayed = 0.0f;  // joined score of those that were between words and still are
        std::uint32_t first_end = 0;
    };
    // A word that may have ended in the current frame.
    struct End {
        ContextId context;
        WordId word;
        float score;
        LatticeNode start, late;
        float late_score;
        std::uint32_t next;
    };
    struct Slot {
        std::uint64_t key = 0;
        std::uint32_t stamp = 0, index = 0;
    };

    std::uint32_t after_phoneme(int phoneme) const {
        return kBetween + static_cast<std::uint32_t>(phoneme);
    }
    std::uint32_t in_sil() const { return kBetween + static_cast<std::uint32_t>(tokens_.sil()); }
    std::uint32_t after_blank() const { return in_sil() + 1; }
    std::uint32_t after_sil_blank() const { return in_sil() + 2; }

    float join(float one, float other) const;
    void begin_frame(const float* scores);
    void advance_within(const float* scores);
    void insert(const Hypothesis& hypothesis);
    void merge(Hypothesis& known, const Hypothesis& hypothesis) const;
    void count(float score);
    void stay(const Hypothesis& hypothesis);
    void stay_between(const Hypothesis& hypothesis);
    void remember_stay(ContextId context, float score);
    void move(const Hypothesis& hypothesis);
    // Not inlined: `move` is where the time goes.
    [[gnu::noinline]] void move_unmasked(const Hypothesis& hypothesis, const TreeNode& node);
    std::uint64_t likely(float score) const;
    void enter(const Hypothesis& hypothesis);
    void reach(const Hypothesis& from, NodeId child, std::uint8_t phoneme);
    void end_word(const Hypothesis& from, std::uint32_t tree_word, std::uint8_t last);
    float survival(std::size_t& n_ties);
    void prune();
    void add_boundaries();
    void add_boundary(ContextId context);
    void shrink_lattice();
    Use& use(ContextId context);
    void grow_slots();

    Contexts contexts_;
    const Vocabulary& vocabulary_;
    Options options_;
    Tokens tokens_;
    std::shared_ptr<const LookAhead> ahead_;
    Lattice lattice_;
    std::int32_t frame_ = 0;
    double offset_ = 0.0;
    bool only_blanks_ = false;  // whether the last frame left every hypothesis after a blank

    std::vector<Hypothesis> live_, reached_;
    std::vector<Slot> slots_;
    std::uint32_t stamp_ = 0;
    std::vector<Use> uses_;  // by context
    std::vector<End> ends_;
    std::vector<ContextId> ended_;
    std::vector<std::pair<float, std::uint8_t>> ranked_;  // phonemes of the frame, best first
    // The first so many of them, one bit each; empty beyond kMostMasked.
    std::vector<std::uint64_t> ranked_masks_;
    const float* scores_ = nullptr;  // of the frame
    std::vector<NodeId> entries_;    // children of the roots by phoneme, two a phoneme
    float sil_cost_ = 0.0f;

    // Survival: the score that it takes is known better and better while a frame is worked on.
    float best_ = 0.0f, least_ = 0.0f, least_word_ = 0.0f, top_ = 0.0f;
    int histogram_[kLevels] = {};
    int cut_ = 0, within_ = 0;
    std::vector<float> sorted_;
    std::vector<std::uint32_t> order_;
    std::vector<float> blank_scores_;
};

}  // namespace cortext
