#include "sentence_frames.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

namespace cortext {

namespace {

constexpr double kNever = -std::numeric_limits<double>::infinity();
constexpr double kLogNegligible = -69.0;  // 1e-30
constexpr double kLogWorsePath = -50.0;   // 1e-22
constexpr double kLeastEnd = 1e-60;
constexpr double kLogSmallest =
    -230.0;  // 1e-100: sums below count as zero, which also keeps denormal numbers away
constexpr double kLogSmallestProb =
    -140.0;  // of the probabilities: three of them come between two checks

// In long utterances `least` would have to be less than 1e-100, and is 1e-60 instead. Prefixes of
// sentences are lost then that were so much worse than the likely sentence and made good for it all
// later. Ordinary frames do not give that much: a stretch of frames that give `kSurprise` more than
// `kOrdinaryGain` each in favour of other tokens is not accepted, nor a likely sentence that loses
// as much in the end.
constexpr double kLogUsualLeast = -138.0, kLogLenientLeast = -69.0;
constexpr double kOrdinaryGain = 3.0, kSurprise = 60.0;

}  // namespace

bool SentenceFrames::scale_by(const SentenceStates& likely, const std::vector<int>& tokens,
                              double spread, bool lenient, const SentenceOptions& options) {
    find_probs(tokens, options);
    if (!likely.follow(scores_PV_, P_, V_, probs_PV_.data(), bests_P_.data(), course_))
        return false;
    if (course_.sum < kLeastEnd || course_.max < kLeastEnd) return false;
    if (!find_least(tokens, spread, lenient, options)) return false;
    rescale(tokens, options);
    return true;
}

// Probabilities relative to the best of each frame.
void SentenceFrames::find_probs(const std::vector<int>& tokens, const SentenceOptions& options) {
    probs_PV_.assign(P_ * V_, 0.0);
    bests_P_.assign(P_, 0.0);
    for (std::size_t t = 0; t < P_; ++t) {
        const double* scores_V = scores_PV_ + t * V_;
        double* probs_V = probs_PV_.data() + t * V_;
        double best = std::max(scores_V[options.blank], scores_V[options.sil]);
        for (int token : tokens) best = std::max(best, scores_V[token]);
        if (!(best > kNever)) continue;
        bests_P_[t] = best;
        probs_V[options.blank] = std::exp(scores_V[options.blank] - best);
        probs_V[options.sil] = std::exp(scores_V[options.sil] - best);
        for (int token : tokens) probs_V[token] = std::exp(scores_V[token] - best);
    }
}

// Bounds what can follow each frame: no state leads to more than itself, a blank, SIL and the next
// labels.
bool SentenceFrames::find_least(const std::vector<int>& tokens, double spread, bool lenient,
                                const SentenceOptions& options) {
    least_P_.resize(P_);
    double sum_ahead = 0.0, max_ahead = 0.0, surprise = 0.0, most_surprise = 0.0;
    bool exact = true, is_prob_lost = false;
    const double smallest_prob = std::exp(kLogSmallestProb);
    const double log_sum = std::log(course_.sum), log_max = std::log(course_.max);
    for (std::size_t t = P_; t-- > 0;) {
        const double log_least =
            std::min(kLogNegligible + log_sum - sum_ahead, kLogWorsePath + log_max - max_ahead);
        exact = exact && log_least >= kLogSmallest;
        least_P_[t] = std::exp(std::max(log_least, kLogSmallest));

        const double* probs_V = probs_PV_.data() + t * V_;
        const double blank = probs_V[options.blank], sil = probs_V[options.sil];
        double first = 0.0, second = 0.0;
        auto is_lost = [&](int token) {
            return probs_V[token] < smallest_prob * course_.sum_gains_P[t] &&
                   scores_PV_[t * V_ + token] > kNever;
        };
        is_prob_lost = is_prob_lost || is_lost(options.blank) || is_lost(options.sil);
        for (int token : tokens) {
            is_prob_lost = is_prob_lost || is_lost(token);
            second = std::max(second, std::min(first, probs_V[token]));
            first = std::max(first, probs_V[token]);
        }
        const double sum = (blank + sil + spread * first + second) / course_.sum_gains_P[t];
        const double max = std::max({blank, sil, spread * first}) / course_.max_gains_P[t];
        const double gain = std::max(std::log(sum), 0.0);
        sum_ahead += gain;
        max_ahead += std::max(std::log(max), 0.0);
        surprise = std::max(surprise + gain - kOrdinaryGain, 0.0);
        most_surprise = std::max(most_surprise, surprise);
    }
    if (exact && (!is_prob_lost || kLogSmallestProb + sum_ahead <= kLogNegligible + log_sum))
        return true;
    const double usual = std::exp(lenient ? kLogLenientLeast : kLogUsualLeast);
    for (double& least : least_P_) least = std::max(least, usual);
    return lenient || most_surprise - std::min(log_sum, log_max) < kSurprise;
}

// Scales the frames by the sums, and now and then best paths by what these gained less.
void SentenceFrames::rescale(const std::vector<int>& tokens, const SentenceOptions& options) {
    const double smallest_prob = std::exp(kLogSmallestProb);
    log_sum_scale_ = log_max_scale_ = 0.0;
    max_scales_P_.assign(P_, 1.0);
    double log_lag = 0.0;
    for (std::size_t t = 0; t < P_; ++t) {
        double* probs_V = probs_PV_.data() + t * V_;
        const double scale = 1.0 / course_.sum_gains_P[t];
        auto rescale = [&](double& prob) {
            prob = prob * scale < smallest_prob ? 0.0 : prob * scale;
        };
        rescale(probs_V[options.blank]);
        rescale(probs_V[options.sil]);
        for (int token : tokens) rescale(probs_V[token]);
        const double log_gain = std::log(course_.sum_gains_P[t]);
        log_sum_scale_ += bests_P_[t] + log_gain;
        log_max_scale_ += bests_P_[t] + log_gain;
        log_lag += log_gain - std::log(course_.max_gains_P[t]);
        if (is_checked(t)) {
            max_scales_P_[t] = std::exp(log_lag);
            log_max_scale_ -= log_lag;
            log_lag = 0.0;
        }
    }
    course_.max *= std::exp(-log_lag);
}

}  // namespace cortext
