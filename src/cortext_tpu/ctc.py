"""Connectionist temporal classification (Graves et al., ICML 2006) on XLA.

Every trial has its own lengths. One scan computes the forward and the backward variables, side by
side in the batch, because the backward variables are the forward variables of the reversed trial.
The gradient of the logits is then the softmax less the share of each token. This takes P sequential
steps; a differentiated scan takes 2 P. The variables are relative to the likeliest state, so that
long trials keep their digits.

B trials, P patches, V tokens, U tokens of the longest label.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import torch
from torchax.interop import call_jax

Array = Any
"""A `jax.Array`."""

IMPOSSIBLE = -1e30
"""Logarithm that stands for zero.

It is finite, because the difference of two infinities is NaN. It is so large that adding a
log-probability changes nothing.
"""


def ctc_loss(
    logits_BPV: torch.Tensor,
    n_patches_B: torch.Tensor,
    labels_BU: torch.Tensor,
    n_labels_B: torch.Tensor,
    blank: int,
) -> torch.Tensor:
    """See `cortext.training.loss.ctc_loss`."""
    losses_B: torch.Tensor = call_jax(
        partial(_loss, blank), logits_BPV.float(), n_patches_B, labels_BU, n_labels_B
    )
    return losses_B


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _loss(
    blank: int, logits_BPV: Array, n_patches_B: Array, labels_BU: Array, n_labels_B: Array
) -> Array:
    return _loss_forward(blank, logits_BPV, n_patches_B, labels_BU, n_labels_B)[0]


def _loss_forward(
    blank: int, logits_BPV: Array, n_patches_B: Array, labels_BU: Array, n_labels_B: Array
) -> tuple[Array, Any]:
    log_probs_BPV = jax.nn.log_softmax(logits_BPV)
    one_hot_BUV = jax.nn.one_hot(labels_BU, logits_BPV.shape[-1])
    # Select the tokens of the labels by a product with ones and zeros, for which a TPU has
    # hardware; it would gather one element after the other.
    exact = partial(jnp.einsum, precision=jax.lax.Precision.HIGHEST)
    blank_PB = log_probs_BPV[..., blank].T
    label_PBU = exact("bpv,buv->pbu", log_probs_BPV, one_hot_BUV)
    blanks, labels, scale_B = _variables(blank_PB, label_PBU, labels_BU, n_patches_B, n_labels_B)

    at_end = jnp.arange(labels_BU.shape[1] + 1) == n_labels_B[:, None]
    last_blank = jnp.where(at_end, blanks[-1, 0], IMPOSSIBLE)
    last_label = jnp.where(at_end[:, 1:], labels[-1, 0], IMPOSSIBLE)
    total_B = jax.nn.logsumexp(jnp.concatenate([last_blank, last_label], 1), axis=1) + scale_B
    possible_B = total_B > IMPOSSIBLE / 2

    of_labels, of_blanks = _shares(labels, label_PBU), _shares(blanks, blank_PB[..., None])
    most = jnp.maximum(of_blanks.max(-1), of_labels.max(-1, initial=IMPOSSIBLE))[..., None]
    of_labels = jnp.exp(of_labels - most)
    of_blanks = jnp.exp(of_blanks - most).sum(-1)
    sum_PB = of_labels.sum(-1) + of_blanks
    share_BPV = exact("pbu,buv->bpv", of_labels / sum_PB[..., None], one_hot_BUV)
    share_BPV = share_BPV.at[..., blank].add((of_blanks / sum_PB).T)
    inside_BP = jnp.arange(logits_BPV.shape[1]) < n_patches_B[:, None]
    d_logits = jnp.where(inside_BP[..., None], jnp.exp(log_probs_BPV) - share_BPV, 0.0)
    # NaN for a label that does not fit into its frames, as with torch.
    d_logits = jnp.where(possible_B[:, None, None], d_logits, jnp.nan)
    return jnp.where(possible_B, -total_B, jnp.inf), d_logits


def _loss_backward(
    blank: int, d_logits_BPV: Array, d_losses_B: Array
) -> tuple[Array, None, None, None]:
    return d_logits_BPV * d_losses_B[:, None, None], None, None, None


_loss.defvjp(_loss_forward, _loss_backward)


def _shares(variables: Array, log_probs: Array) -> Array:
    """Return the states' log-probabilities at each patch given the label, up to a constant each."""
    return variables[:, 0] + variables[::-1, 1, :, ::-1] - log_probs


def _variables(
    blank_PB: Array, label_PBU: Array, labels_BU: Array, n_patches_B: Array, n_labels_B: Array
) -> tuple[Array, Array, Array]:
    """Return variables of the blanks [P, 2, B, U + 1] and labels [P, 2, B, U], and a scale [B].

    The second axis holds the forward variables and those of the reversed trials. It is an axis of
    its own, because cores share the trials. In a reversed trial padding comes first, and the state
    waits there until the trial begins. Every step subtracts the logarithm of the likeliest state
    before it; the scale is the sum subtracted from the forward variables.
    """
    n_steps = len(blank_PB)
    n_labels = labels_BU.shape[1]
    inside_PB = jnp.arange(n_steps)[:, None] < n_patches_B
    # Otherwise states beyond the label would become the likeliest.
    label_PBU = jnp.where(jnp.arange(n_labels) < n_labels_B[:, None], label_PBU, IMPOSSIBLE)
    blanks = jnp.stack([blank_PB, blank_PB[::-1]], 1)
    labels = jnp.stack([label_PBU, label_PBU[::-1, :, ::-1]], 1)
    inside = jnp.stack([inside_PB, inside_PB[::-1]], 1)
    labels_BU = jnp.stack([labels_BU, labels_BU[:, ::-1]])
    begin_B = jnp.stack([jnp.zeros_like(n_labels_B), n_labels - n_labels_B])
    # A label may follow another without a blank between them, unless they are the same.
    differs = jnp.pad(labels_BU[..., 1:] != labels_BU[..., :-1], ((0, 0), (0, 0), (1, 0)))

    def step(state: tuple[Array, Array, Array], at: tuple[Array, Array, Array]) -> tuple[Any, Any]:
        blanks, labels, scale = state
        blank, label, inside = at
        before = jnp.pad(labels, ((0, 0), (0, 0), (1, 0)), constant_values=IMPOSSIBLE)
        skipping = jnp.where(differs, before[..., :-1], IMPOSSIBLE)
        # The likeliest state before this step, so that no sum waits for the maximum after it.
        most = jnp.maximum(blanks, before).max(-1, keepdims=True)
        new_labels = _log_add(_log_add(labels, blanks[..., :-1]), skipping) + (label - most)
        new_blanks = _log_add(blanks, before) + (blank[..., None] - most)
        inside = inside[..., None]
        blanks, labels = (
            jnp.where(inside, new_blanks, blanks),
            jnp.where(inside, new_labels, labels),
        )
        return (blanks, labels, jnp.where(inside, scale + most, scale)), (blanks, labels)

    first_blanks = jnp.where(jnp.arange(n_labels + 1) == begin_B[..., None], 0.0, IMPOSSIBLE)
    first = (
        first_blanks,
        jnp.full(labels_BU.shape, IMPOSSIBLE),
        jnp.zeros_like(first_blanks[..., :1]),
    )
    (_, _, scale), variables = jax.lax.scan(step, first, (blanks, labels, inside))
    return *variables, scale[0, :, 0]


def _log_add(a: Array, b: Array) -> Array:
    return jnp.maximum(a, b) + jnp.log1p(jnp.exp(-jnp.abs(a - b)))
