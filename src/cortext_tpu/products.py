"""Matrix products on XLA in the run's precision, and torch's tensors as JAX's.

Products take operands in that precision and add up in float32, forwards and backwards.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import torch
from jax.sharding import Mesh
from torchax.interop import call_jax

Array = Any
"""A `jax.Array`."""


class _Tracing(NamedTuple):
    bf16: bool = False
    mesh: Mesh | None = None


_AS_IT_IS = _Tracing()
_TRACING = ContextVar("tracing", default=_AS_IT_IS)


@contextmanager
def tracing(bf16: bool, mesh: Mesh | None = None) -> Iterator[None]:
    """Trace within the context with matrix products of bfloat16 or float32 operands.

    Args:
        bf16: True for bfloat16.
        mesh: Cores that share the units of a wide layer, although they share trials elsewhere; None
            shares no layer.
    """
    # torchax's own autocast (0.0.14) fails at `stack` and `cat`, and rounds results to bfloat16.
    token = _TRACING.set(_Tracing(bf16, mesh))
    try:
        with jax.default_matmul_precision("default" if bf16 else "highest"):
            yield
    finally:
        _TRACING.reset(token)


def operand_dtype() -> Any:
    """Return the type of a product's operands in the program being traced."""
    return jnp.bfloat16 if _TRACING.get().bf16 else jnp.float32


def shared_mesh() -> Mesh | None:
    """Return the cores that share the units of a wide layer; None for none."""
    return _TRACING.get().mesh


def on_jax(function: Callable[..., Array], *tensors: torch.Tensor) -> torch.Tensor:
    """Call a function of JAX's arrays with torchax's tensors; gradients pass through it."""
    result: torch.Tensor = call_jax(function, *tensors)
    return result


def product(equation: str, a: Array, b: Array, dtype: Any) -> Array:
    """Compute `jnp.einsum(equation, a, b)`, and its gradients, with float32 sums and results.

    Args:
        equation: Equation of `einsum`; each letter must be in two of its three parts.
        a: First operand.
        b: Second operand.
        dtype: Type of both operands in the product.
    """
    return _product(equation, dtype, a.astype(jnp.float32), b.astype(jnp.float32))


@partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _product(equation: str, dtype: Any, a: Array, b: Array) -> Array:
    return einsum(equation, a.astype(dtype), b.astype(dtype))


def einsum(equation: str, a: Array, b: Array) -> Array:
    """Compute `jnp.einsum(equation, a, b)` with float32 sums and results.

    Args:
        equation: Equation of `einsum`.
        a: First operand, of any float type.
        b: Second operand, of the same type.
    """
    return jnp.einsum(equation, a, b, preferred_element_type=jnp.float32)


def _product_forward(
    equation: str, dtype: Any, a: Array, b: Array
) -> tuple[Array, tuple[Array, Array]]:
    a, b = a.astype(dtype), b.astype(dtype)
    return einsum(equation, a, b), (a, b)


def _product_backward(
    equation: str, dtype: Any, operands: tuple[Array, Array], d_result: Array
) -> tuple[Array, Array]:
    # JAX's own rule would round the sums of a bfloat16 operand's gradient to bfloat16.
    a, b = operands
    d_result = d_result.astype(dtype)
    inputs, _, of_result = equation.partition("->")
    of_a, _, of_b = inputs.partition(",")
    return einsum(f"{of_result},{of_b}->{of_a}", d_result, b), einsum(
        f"{of_result},{of_a}->{of_b}", d_result, a
    )


_product.defvjp(_product_forward, _product_backward)
