"""Values of slates from values of their items, and the best slate (Ie et al. 2019).

The last of `n + 1` scores and values is that of the null item, which is chosen if nothing on the slate
is.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int


def take_shown(
    of_items: Float[Array, "*batch m"], slates: Int[Array, "*batch k"]
) -> Float[Array, "*batch s"]:
    """Return the numbers of a slate's items and, as the last, of the null item.

    Args:
        of_items: Numbers of n items and of the null item, m = n + 1.
        slates: Indices of the items on each slate; s = k + 1.
    """
    shown = jnp.take_along_axis(of_items, slates, axis=-1)
    return jnp.concatenate([shown, of_items[..., -1:]], axis=-1)


def compute_slate_values(
    scores: Float[Array, "*batch m"],
    values: Float[Array, "*batch m"],
    slates: Int[Array, "*batch k"],
) -> Float[Array, "*batch"]:
    """Compute Q(s, A) = Σ P(i | s, A) Q(s, i) over the items of A and the null item (section 4).

    P(i | s, A) is the conditional logit: proportional to exp(score) among what is shown.

    Args:
        scores: Scores of n items and of the null item, m = n + 1.
        values: Long-term values Q(s, i) of the same.
        slates: Indices of the items on each slate.
    """
    probs = jax.nn.softmax(take_shown(scores, slates), axis=-1)
    return jnp.sum(probs * take_shown(values, slates), axis=-1)


def choose_best_slates(
    scores: Float[Array, "*batch m"], values: Float[Array, "*batch m"], size: int
) -> Int[Array, "*batch k"]:
    """Return the slates of `size` distinct items with the largest values, best items first.

    Slate optimization is a fractional program (section 5), which is solved without a search over all
    slates: given a value λ that a slate has, the items with the largest v(i) (Q(s, i) − λ), v = exp
    of the score, form a slate of at least the value λ, and one of a larger value if there is any
    (Dinkelbach 1967, https://doi.org/10.1287/mnsc.13.7.492). Starting at the null item's value, whose
    slate is the paper's top-k (section 5), a few sorts find the best one.

    Args:
        scores: Scores of n items and of the null item, m = n + 1.
        values: Long-term values Q(s, i) of the same.
        size: Number of items on a slate, k.
    """
    scale = jnp.exp(scores - jnp.max(scores, axis=-1, keepdims=True))[..., :-1]

    def improve(value: Float[Array, "*batch"]) -> tuple[Array, Array]:
        gains = scale * (values[..., :-1] - value[..., None])
        slates = jax.lax.top_k(gains, size)[1]
        return slates, compute_slate_values(scores, values, slates)

    def step(carry: tuple[Array, Array, Bool[Array, "*batch"]]) -> tuple[Array, Array, Array]:
        slates, value, _ = carry
        other, other_value = improve(value)
        is_better = other_value > value
        return (
            jnp.where(is_better[..., None], other, slates),
            jnp.where(is_better, other_value, value),
            is_better,
        )

    first, value = improve(values[..., -1])
    is_open = jnp.ones(value.shape, bool)
    return jax.lax.while_loop(lambda carry: jnp.any(carry[2]), step, (first, value, is_open))[0]
