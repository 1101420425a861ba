"""Reference implementations of `jaxrl.ops` for tests, as naive NumPy loops in float64.

They favor readability: one trajectory `[T]` at a time, with an `if` for every case.
"""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

FloatArray = NDArray[np.float64]


def gae(
    reward: ArrayLike,
    value: ArrayLike,
    next_value: ArrayLike,
    terminated: ArrayLike,
    truncated: ArrayLike,
    mask: ArrayLike,
    gamma: float,
    lambda_: float,
) -> FloatArray:
    """Compute generalized advantage estimates.

    The estimate is `sum_k (gamma lambda)^k delta_{t+k}` within an episode, with
    `delta_t = r_t + gamma (1 - terminated_t) v(s_{t+1}) - v(s_t)`.
    """
    r, v, nv = _to_float64(reward, value, next_value)
    term, trunc, valid = _to_bool(terminated, truncated, mask)
    advantage = np.zeros(len(r))
    for t in range(len(r)):
        weight = 1.0
        for k in range(t, len(r)):
            if not valid[k]:
                break
            bootstrap = 0.0 if term[k] else gamma * nv[k]
            advantage[t] += weight * (r[k] + bootstrap - v[k])
            weight *= gamma * lambda_
            if term[k] or trunc[k]:
                break
    return advantage


def lambda_returns(
    reward: ArrayLike,
    next_value: ArrayLike,
    terminated: ArrayLike,
    truncated: ArrayLike,
    mask: ArrayLike,
    gamma: float,
    lambda_: float,
) -> FloatArray:
    """Compute `(1 - lambda) sum_n lambda^(n-1) G^(n)`, the remaining weight on the last return."""
    term, trunc, valid = _to_bool(terminated, truncated, mask)
    result = np.zeros(len(term))
    for t in range(len(term)):
        if not valid[t]:
            continue
        steps = 1
        while _continues(t + steps - 1, term, trunc, valid):
            steps += 1
        args = (reward, next_value, terminated, truncated, mask, gamma)
        n_step = [n_step_returns(*args, n)[t] for n in range(1, steps + 1)]
        weights = [(1.0 - lambda_) * lambda_ ** (n - 1) for n in range(1, steps)]
        weights.append(lambda_ ** (steps - 1))
        result[t] = np.dot(weights, n_step)
    return result


def n_step_returns(
    reward: ArrayLike,
    next_value: ArrayLike,
    terminated: ArrayLike,
    truncated: ArrayLike,
    mask: ArrayLike,
    gamma: float,
    n: int,
) -> FloatArray:
    """Sum up to n discounted rewards and bootstrap from the last successor unless terminated."""
    r, nv = _to_float64(reward, next_value)
    term, trunc, valid = _to_bool(terminated, truncated, mask)
    result = np.zeros(len(r))
    for t in range(len(r)):
        if not valid[t]:
            continue
        last = t
        while last - t < n - 1 and _continues(last, term, trunc, valid):
            last += 1
        for k in range(t, last + 1):
            result[t] += gamma ** (k - t) * r[k]
        if not term[last]:
            result[t] += gamma ** (last - t + 1) * nv[last]
    return result


def vtrace(
    reward: ArrayLike,
    value: ArrayLike,
    next_value: ArrayLike,
    rho: ArrayLike,
    terminated: ArrayLike,
    truncated: ArrayLike,
    mask: ArrayLike,
    gamma: float,
    lambda_: float = 1.0,
    clip_rho: float = 1.0,
    clip_pg_rho: float = 1.0,
) -> tuple[FloatArray, FloatArray]:
    """Compute V-trace targets and policy-gradient advantages.

    The target is `v_t + sum_k gamma^k (prod c) rho_{t+k} delta_{t+k}` with
    `c = lambda min(1, ratio)` and `rho = min(clip_rho, ratio)`.
    """
    r, v, nv, ratio = _to_float64(reward, value, next_value, rho)
    term, trunc, valid = _to_bool(terminated, truncated, mask)
    targets, advantages = v.copy(), np.zeros(len(r))
    for t in range(len(r)):
        weight, k = 1.0, t
        while valid[t]:
            bootstrap = 0.0 if term[k] else gamma * nv[k]
            targets[t] += weight * min(clip_rho, ratio[k]) * (r[k] + bootstrap - v[k])
            if not _continues(k, term, trunc, valid):
                break
            weight *= gamma * lambda_ * min(1.0, ratio[k])
            k += 1
    for t in range(len(r)):
        if not valid[t]:
            continue
        successor = targets[t + 1] if _continues(t, term, trunc, valid) else nv[t]
        bootstrap = 0.0 if term[t] else gamma * successor
        advantages[t] = min(clip_pg_rho, ratio[t]) * (r[t] + bootstrap - v[t])
    return targets, advantages


def clipped_surrogate(ratio: ArrayLike, advantage: ArrayLike, clip_param: float) -> FloatArray:
    """Compute PPO's clipped policy loss per sample."""
    rs, advantages = _to_float64(ratio, advantage)
    loss = np.zeros(len(rs))
    for i, (r, a) in enumerate(zip(rs, advantages, strict=True)):
        bound = min(max(r, 1.0 - clip_param), 1.0 + clip_param)
        loss[i] = -min(r * a, bound * a)
    return loss


def categorical_projection(
    reward: float, discount: float, probs: ArrayLike, support: ArrayLike
) -> FloatArray:
    """Project each atom's mass onto its two neighbors (Algorithm 1 of Bellemare et al. 2017)."""
    p, z = _to_float64(probs, support)
    low, high = z[0], z[-1]
    spacing = (high - low) / (len(z) - 1)
    m = np.zeros(len(z))
    for j in range(len(z)):
        shifted = min(max(reward + discount * z[j], low), high)
        b = (shifted - low) / spacing
        lower, upper = int(np.floor(b)), int(np.ceil(b))
        if lower == upper:
            m[lower] += p[j]
            continue
        m[lower] += p[j] * (upper - b)
        m[upper] += p[j] * (b - lower)
    return m


def quantile_huber_loss(quantiles: ArrayLike, target: ArrayLike, kappa: float) -> float:
    """Compute equation 10 of Dabney et al. 2018: sum over estimates, mean over targets."""
    theta, samples = _to_float64(quantiles, target)
    total = 0.0
    for i in range(len(theta)):
        tau = (2 * i + 1) / (2 * len(theta))
        for sample in samples:
            u = sample - theta[i]
            size = abs(u)
            huber = 0.5 * u * u if size <= kappa else kappa * (size - 0.5 * kappa)
            total += abs(tau - (1.0 if u < 0 else 0.0)) * huber / kappa / len(samples)
    return total


def mean_and_variance(rows: ArrayLike, mask: ArrayLike) -> tuple[FloatArray, FloatArray]:
    """Compute mean and sample variance of the unmasked rows `[N, ...]`."""
    kept = np.asarray(rows, np.float64)[np.asarray(mask, bool)]
    return kept.mean(axis=0), kept.var(axis=0, ddof=1)


def _continues(
    t: int, terminated: NDArray[Any], truncated: NDArray[Any], mask: NDArray[Any]
) -> bool:
    """Return whether row t + 1 exists and continues the episode of row t."""
    ended = terminated[t] or truncated[t]
    return not ended and t + 1 < len(mask) and bool(mask[t + 1])


def _to_float64(*arrays: ArrayLike) -> tuple[FloatArray, ...]:
    return tuple(np.asarray(x, np.float64) for x in arrays)


def _to_bool(*arrays: ArrayLike) -> tuple[NDArray[np.bool_], ...]:
    return tuple(np.asarray(x, np.bool_) for x in arrays)
