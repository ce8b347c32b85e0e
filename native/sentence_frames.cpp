#include "sentence_frames.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

namespace cortext {

namespace {

constexpr double kLogNegligible = -69.0;  // 1e-30
constexpr double kLogSmallest = -230.0;   // 1e-100: nothing below counts; its products are no denormal numbers
constexpr double kLogSmallestProb = -460.0;  // 1e-200

// Where `least` had to be raised to 1e-100, prefixes of sentences that were so much worse than the likely sentence and
// made good for it all later are lost. Ordinary frames do not give that much; what the frames give beyond
// `kOrdinaryGain` in favour of other tokens than the sentence's is surprising, and little of that is accepted.
constexpr double kOrdinaryGain = 3.0, kAcceptedSurprise = 60.0;

}  // namespace

bool SentenceFrames::scale_by(const SentenceStates& likely, const std::vector<int>& tokens, double spread,
                              const SentenceOptions& options) {
    find_probs(tokens, options);
    total_ = likely.follow(probs_PV_.data(), P_, V_, gains_P_);
    return total_ > 1e-60 && find_least(tokens, spread, options);
}

// Probabilities relative to the best of each frame.
void SentenceFrames::find_probs(const std::vector<int>& tokens, const SentenceOptions& options) {
    probs_PV_.assign(P_ * V_, 0.0);
    log_scale_ = 0.0;
    for (std::size_t t = 0; t < P_; ++t) {
        const double* scores_V = scores_PV_ + t * V_;
        double* probs_V = probs_PV_.data() + t * V_;
        double best = std::max(scores_V[options.blank], scores_V[options.sil]);
        for (int token : tokens) best = std::max(best, scores_V[token]);
        if (!(best > -std::numeric_limits<double>::infinity())) continue;
        log_scale_ += best;
        probs_V[options.blank] = std::exp(scores_V[options.blank] - best);
        probs_V[options.sil] = std::exp(scores_V[options.sil] - best);
        for (int token : tokens) probs_V[token] = std::exp(scores_V[token] - best);
    }
}

// Scales the probabilities, and bounds what can follow each frame: no state leads to more than itself, a blank, SIL and
// the next labels.
bool SentenceFrames::find_least(const std::vector<int>& tokens, double spread, const SentenceOptions& options) {
    least_P_.resize(P_);
    double ahead = 0.0, surprise = 0.0;
    bool exact = true;
    const double log_total = std::log(total_), smallest_prob = std::exp(kLogSmallestProb);
    for (std::size_t t = P_; t-- > 0;) {
        double* probs_V = probs_PV_.data() + t * V_;
        double first = 0.0, second = 0.0;
        for (int token : tokens) {
            second = std::max(second, std::min(first, probs_V[token]));
            first = std::max(first, probs_V[token]);
        }
        const double following = probs_V[options.blank] + probs_V[options.sil] + spread * first + second;
        const double log_least = kLogNegligible + log_total - ahead;
        exact = exact && log_least >= kLogSmallest;
        least_P_[t] = std::exp(std::max(log_least, kLogSmallest));
        const double gain = std::max(std::log(following / gains_P_[t]), 0.0);
        ahead += gain;
        surprise += std::max(gain - kOrdinaryGain, 0.0);

        log_scale_ += std::log(gains_P_[t]);
        const double scale = 1.0 / gains_P_[t];
        auto rescale = [&](double& prob) { prob = prob * scale < smallest_prob ? 0.0 : prob * scale; };
        rescale(probs_V[options.blank]);
        rescale(probs_V[options.sil]);
        for (int token : tokens) rescale(probs_V[token]);
    }
    exact = exact && kLogSmallestProb + ahead <= kLogNegligible + log_total;
    return exact || surprise < kAcceptedSurprise;
}

}  // namespace cortext
