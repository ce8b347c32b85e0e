"""Connectionist temporal classification (Graves et al., ICML 2006) in Keras.

Every trial has its own lengths, the blank is 0, and numbers are float32. The gradient comes from
the backward variables, not from a tape of the forward variables. The work per frame grows with the
length of the label; in `keras.ops.ctc_loss` (TensorFlow's for dense labels) it grows with the
square of the length.

B trials, P patches (frames), V tokens, U label tokens, S states: blanks around and between the
labels, 2 U + 1.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from keras import ops

_NEVER = -1e30  # the logarithm of zero; finite, because the difference of two infinities is NaN


def ctc_loss(logits_BPV: Any, n_patches_B: Any, labels_BU: Any, n_labels_B: Any) -> Any:
    """Compute the negative log-likelihood (natural) of each trial's label.

    A label that does not fit into its trial's frames gives inf and no gradient; a trial of 0 frames
    gives 0.

    Args:
        logits_BPV: Float [B, P, V] of any precision; P is static.
        n_patches_B: int [B], frames of each trial; later frames are never read.
        labels_BU: int [B, U], labels; U is static.
        n_labels_B: int [B], tokens of each label; later tokens are never read.

    Returns:
        Float32 [B].
    """
    counts = [ops.cast(count, "int32") for count in (n_patches_B, labels_BU, n_labels_B)]

    def with_gradient(log_probs_BPV: Any) -> Any:
        trials = _trials(log_probs_BPV, *counts)
        alpha_PBS, likelihood_B = _forward(trials)
        # Do not negate this condition: TensorFlow rewrites the negation, and NaN is lost.
        misfits_B = likelihood_B < _NEVER / 2
        loss_B = ops.where(counts[0] > 0, ops.where(misfits_B, float("inf"), -likelihood_B), 0.0)

        def gradient(*args: Any, upstream: Any = None) -> Any:
            (d_B,) = args if upstream is None else (upstream,)
            share_PBS = ops.softmax(alpha_PBS + _backward(trials), axis=-1)
            share_PBS = ops.where(trials.frame_PB1 <= trials.last_B1, share_PBS, 0.0)
            share_PBS = ops.where(ops.expand_dims(misfits_B, 1), 0.0, share_PBS)
            tokens_BSV = ops.one_hot(trials.states_BS, log_probs_BPV.shape[2], dtype="float32")
            return -ops.einsum("pbs,bsv->bpv", share_PBS, tokens_BSV) * ops.reshape(d_B, (-1, 1, 1))

        return loss_B, gradient

    return ops.custom_gradient(with_gradient)(
        ops.log_softmax(ops.cast(logits_BPV, "float32"), axis=-1)
    )


class _Trials(NamedTuple):
    """A batch as states and frames.

    Attributes:
        states_BS: Token of each state.
        emitted_PBS: Log-probability of that token in each frame.
        jumps_BS: 0 if a state may follow the state two before it, as a label may without a blank
            between; else `_NEVER`.
        first_BS: 0 for the states in which a trial may begin; else `_NEVER`.
        final_BS: 0 for the states in which a trial may end; else `_NEVER`.
        frame_PB1: Number of each frame.
        last_B1: Number of each trial's last frame.
    """

    states_BS: Any
    emitted_PBS: Any
    jumps_BS: Any
    first_BS: Any
    final_BS: Any
    frame_PB1: Any
    last_B1: Any


def _trials(log_probs_BPV: Any, n_patches_B: Any, labels_BU: Any, n_labels_B: Any) -> _Trials:
    n_trials, n_patches, _ = ops.shape(log_probs_BPV)
    n_states = 2 * labels_BU.shape[1] + 1
    states_BS = ops.reshape(
        ops.stack([ops.zeros_like(labels_BU), labels_BU], axis=-1), (n_trials, n_states - 1)
    )
    states_BS = ops.pad(states_BS, ((0, 0), (0, 1)))
    number_S = ops.arange(n_states, dtype="int32")
    last_B1 = ops.expand_dims(2 * n_labels_B, 1)
    index_BPS = ops.broadcast_to(ops.expand_dims(states_BS, 1), (n_trials, n_patches, n_states))
    emitted_BPS = ops.take_along_axis(log_probs_BPV, index_BPS, axis=2)
    return _Trials(
        states_BS,
        ops.where(number_S > last_B1, _NEVER, ops.transpose(emitted_BPS, (1, 0, 2))),
        ops.where((states_BS != _later(states_BS, 2, 0)) & (states_BS != 0), 0.0, _NEVER),
        ops.where((number_S <= 1) & (number_S <= last_B1), 0.0, _NEVER),
        ops.where((number_S == last_B1) | (number_S == last_B1 - 1), 0.0, _NEVER),
        ops.reshape(ops.arange(n_patches, dtype="int32"), (-1, 1, 1)),
        ops.expand_dims(n_patches_B - 1, 1),
    )


def _forward(trials: _Trials) -> tuple[Any, Any]:
    """Return logs of the forward variables relative to the frame's largest, and of likelihoods."""

    def step(before: Any, at: Any) -> tuple[Any, Any]:
        before_BS, total_B1 = before
        emitted_BS, frame = at
        after_BS = _add(before_BS, _later(before_BS, 1), _later(before_BS, 2) + trials.jumps_BS)
        after_BS, most_B1 = _rescaled(ops.where(frame == 0, trials.first_BS, after_BS) + emitted_BS)
        inside_B1 = frame <= trials.last_B1
        after = (
            ops.where(inside_B1, after_BS, before_BS),
            ops.where(inside_B1, total_B1 + most_B1, total_B1),
        )
        return after, after

    start = ops.full_like(trials.final_BS, _NEVER), ops.zeros_like(trials.final_BS[:, :1])
    (end_BS, total_B1), (alpha_PBS, _) = ops.scan(
        step, start, (trials.emitted_PBS, trials.frame_PB1)
    )
    return alpha_PBS, ops.logsumexp(end_BS + trials.final_BS, axis=1) + total_B1[:, 0]


def _backward(trials: _Trials) -> Any:
    """Return the logs of the backward variables, relative to the frame's largest."""

    def step(after_BS: Any, at: Any) -> tuple[Any, Any]:
        emitted_BS, frame = at  # of the frame after this one
        after_BS = after_BS + emitted_BS
        before_BS = _add(after_BS, _earlier(after_BS, 1), _earlier(after_BS + trials.jumps_BS, 2))
        before_BS = ops.where(frame < trials.last_B1, _rescaled(before_BS)[0], trials.final_BS)
        return before_BS, before_BS

    after_PBS = ops.concatenate([trials.emitted_PBS[1:], trials.emitted_PBS[:1]])
    return ops.scan(step, trials.final_BS, (after_PBS, trials.frame_PB1), reverse=True)[1]


def _rescaled(logs_BS: Any) -> tuple[Any, Any]:
    """Return logs relative to the largest, which keeps long trials' digits, and the largest."""
    most_B1 = ops.max(logs_BS, axis=1, keepdims=True)
    return logs_BS - most_B1, most_B1


def _later(x_BS: Any, by: int, fill: Any = _NEVER) -> Any:
    """Shift towards later states."""
    return ops.pad(x_BS, ((0, 0), (by, 0)), constant_values=fill)[:, :-by]


def _earlier(x_BS: Any, by: int) -> Any:
    """Shift towards earlier states."""
    return ops.pad(x_BS, ((0, 0), (0, by)), constant_values=_NEVER)[:, by:]


def _add(*logs: Any) -> Any:
    """Return the logarithm of the sum of three probabilities."""
    most = ops.maximum(ops.maximum(logs[0], logs[1]), logs[2])
    return most + ops.log(sum(ops.exp(log - most) for log in logs))
