"""What measurements say beyond a prediction: a Gaussian process over log(measured / predicted).

Covered: fitting a handful to some hundred values, the mean and spread elsewhere. Not covered: what is
predicted (`predict`), what is done with it (`strategy`). Likeness is the sum of four parts: one constant for
the whole machine, one by placement, one by placement and chief knobs, one by everything; where knobs act
alike under every placement, also one by the chief knobs alone and one by the others. Amplitude, reach and
noise are those under which the values seen are the most probable, held near the stated prior while few.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from offtune.features import Features, Matrix

Vector = NDArray[np.float64]

# Parts of the variance, in units of the amplitude: machine, placement, chief knobs, everything. That the
# machine is off as a whole (other clock, other load) is the commonest error of all.
_PARTS = (2.0, 0.5, 0.35, 0.15)
# Where knobs are taken to act alike everywhere, two parts more: chief knobs alone, others alone.
_SHARED_PARTS = (2.0, 0.5, 0.3, 0.15, 0.5, 0.1)
# What is tried for the reach of likeness and for the noise (as a share of the amplitude's variance).
_REACHES = (0.7, 1.0, 1.5, 2.5)
_NOISES = (0.002, 0.01, 0.03, 0.1, 0.3)
# The prior amplitude weighs as much as so many values.
_PRIOR_VALUES = 4.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Residuals:
    """A fitted process: rows it was fitted to, and what is needed to tell mean and spread elsewhere."""

    features: Features
    rows: Matrix
    reach: float
    variance: float
    noise_variance: float
    values: Vector
    weights: Vector
    root: Matrix

    def at(self, rows: Matrix) -> tuple[Vector, Vector]:
        """Mean and standard deviation (without the noise of a further measurement) at `rows`."""
        cross = self.variance * _likeness(self.features, rows, self.rows, self.reach)
        inner = np.linalg.solve(self.root, cross.T)
        left = self.variance * sum(_parts(self.features)) - np.sum(inner**2, axis=0)
        return cross @ self.weights, np.sqrt(np.maximum(left, 1e-12))

    def believing(self, rows: Matrix) -> Residuals:
        """The process if measurements at `rows` turned out as it expects: the spread shrinks there."""
        expected, _ = self.at(rows)
        every = np.concatenate([self.rows.reshape(-1, rows.shape[1]), rows])
        covariance = self.variance * _likeness(self.features, every, every, self.reach)
        root = _root(covariance + self.noise_variance * np.eye(len(every)))
        values = np.concatenate([self.values, expected])
        return replace(self, rows=every, values=values, root=root, weights=_solved(root, values))


def fit(
    features: Features, rows: Matrix, values: Vector, *, prior_spread: float, noise_spread: float
) -> Residuals:
    """The process for `values` at `rows`; both spreads are standard deviations of the logarithm.

    `noise_spread` is the least noise of one measurement, as far as it is known.
    """
    prior = _PRIOR_VALUES * prior_spread**2
    spectra = _spectra(features, len(values), rows.tobytes())
    tried = [one for reach in _REACHES for one in _tried(spectra[reach], values, reach, prior)]
    _, reach, noise, variance = max(tried, key=lambda one: one[0])
    noise_variance = max(noise * variance, noise_spread**2)
    root = _root(variance * spectra[reach].likeness + noise_variance * np.eye(len(values)))
    return Residuals(
        features=features, rows=rows, reach=reach, variance=variance, noise_variance=noise_variance,
        values=values, weights=_solved(root, values), root=root,
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Decomposed:
    """A likeness among rows, taken apart: every noise costs a division then."""

    likeness: Matrix
    spectrum: Vector
    basis: Matrix


# Speed and memory are mostly known of the same rows.
@lru_cache(maxsize=2)
def _spectra(features: Features, count: int, data: bytes) -> dict[float, _Decomposed]:
    """By reach, the likeness among `count` rows."""
    rows = np.frombuffer(data, dtype=np.float64).reshape(count, len(features.columns))
    distances = _distances(features, rows, rows)
    found = {reach: _faded(features, distances, reach) for reach in _REACHES}
    return {reach: _Decomposed(likeness, *np.linalg.eigh(likeness)) for reach, likeness in found.items()}


def _tried(
    decomposed: _Decomposed, values: Vector, reach: float, prior: float
) -> Iterator[tuple[float, float, float, float]]:
    """Log probability (up to a constant), reach, noise and amplitude's variance, for every noise."""
    count = _PRIOR_VALUES + len(values)
    squares = (decomposed.basis.T @ values) ** 2
    for noise in _NOISES:
        total = np.maximum(decomposed.spectrum, 0.0) + noise
        variance = float((prior + np.sum(squares / total)) / count)
        yield -0.5 * (count * math.log(variance) + float(np.sum(np.log(total)))), reach, noise, variance


def _root(matrix: Matrix) -> Matrix:
    """The lower triangle whose product with its transpose is `matrix`."""
    return np.asarray(np.linalg.cholesky(matrix), dtype=np.float64)


def _solved(root: Matrix, values: Vector) -> Vector:
    """The inverse of (root x its transpose), times `values`."""
    result: Vector = np.linalg.solve(root.T, np.linalg.solve(root, values))
    return result


def _parts(features: Features) -> tuple[float, ...]:
    return _SHARED_PARTS if features.shared else _PARTS


def _likeness(features: Features, one: Matrix, other: Matrix, reach: float) -> Matrix:
    """The sum of the parts, for every pair of rows."""
    return _faded(features, _distances(features, one, other), reach)


def _distances(features: Features, one: Matrix, other: Matrix) -> tuple[Matrix, ...]:
    """Squared distances of every pair of rows, for each part but the constant one."""
    cuts = (0, features.where, features.main, len(features.columns))
    where, main, minor = (
        _squared_distances(one[:, start:end], other[:, start:end]) for start, end in pairwise(cuts)
    )
    return where, where + main, where + main + minor, main, minor


def _faded(features: Features, distances: tuple[Matrix, ...], reach: float) -> Matrix:
    """The sum of the parts at these distances."""
    parts = _parts(features)
    result = np.full(distances[0].shape, parts[0])
    for part, squared in zip(parts[1:], distances, strict=False):
        result += part * np.exp(-0.5 * squared / reach**2)
    return result


def _squared_distances(one: Matrix, other: Matrix) -> Matrix:
    squares = np.sum(one**2, axis=1)[:, None] + np.sum(other**2, axis=1)[None, :] - 2.0 * one @ other.T
    result: Matrix = np.maximum(squares, 0.0)
    return result
