"""Softmax regression around a fixed offset: how the weights of the text model are learned.

    minimise  Σ_i w_i · CE(y_i, softmax(offset_i + X_i W)) / Σ_i w_i  +  penalty / 2 · ‖W‖²

The offset is what the rules say, at its full weight; there is no intercept. Libraries of linear models fit without an
offset, and without it the weights would have to learn from two or three sources a type what the rules know of a
language or a field; so the loss and its gradient are written out here and minimised by SciPy's L-BFGS-B.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.optimize import minimize, minimize_scalar

from selector.core.requesttext import extract
from selector.core.textfeatures import BUCKETS, grams_of, signs_of
from selector.core.textmodel import TextModel, evidence_of, gram_scale, rule_scores
from selector.core.textwords import cut
from selector.core.types import TEXT_TYPES

Floats = NDArray[np.float32]
Matrix = Any
"""A SciPy sparse matrix, whose types SciPy does not tell."""

PENALTY = 5e-3
GRAM_GAIN = 60.0
"""Grams are scaled up against signs by this, so that the penalty on them is that much lighter."""
ITERATIONS = 40
MIN_SOURCES = 3
"""Sources in which a gram has to occur to get a weight: what fewer have is a habit of theirs."""
TEMPERATURE_PENALTY = 1.0
"""In nats of log-likelihood, in which all requests of a type together, and in one form, weigh 1."""
TYPES = len(TEXT_TYPES)


@dataclass(frozen=True, slots=True, kw_only=True)
class Featured:
    """Requests as the model sees them; the first dimension is the request."""

    matrix: Matrix
    """Scaled grams, then signs."""
    offset: Floats
    """Prior, structure and rules."""

    def rows(self, chosen: NDArray[np.bool_]) -> Featured:
        return Featured(matrix=self.matrix[chosen], offset=self.offset[chosen])


def featured(bodies: Sequence[dict[str, Any]]) -> Featured:
    """The features of request bodies."""
    columns, values, starts, signs, offsets = [], [], [0], [], []
    for body in bodies:
        request = extract(body)
        words = cut(request.text)
        grams = grams_of(words)
        found, times = np.unique(grams, return_counts=True)
        columns.append(found)
        values.append((GRAM_GAIN * gram_scale(len(grams)) * times).astype(np.float32))
        starts.append(starts[-1] + len(found))
        signs.append(signs_of(words, request))
        offsets.append(rule_scores(evidence_of(words, request)))
    grams = sparse.csr_matrix(
        (np.concatenate(values), np.concatenate(columns), starts), shape=(len(bodies), BUCKETS), dtype=np.float32
    )
    matrix = sparse.hstack([grams, sparse.csr_matrix(np.stack(signs))], format="csr")
    return Featured(matrix=matrix, offset=np.array(offsets, np.float32))


def common_columns(matrix: Matrix, sources: NDArray[np.str_]) -> NDArray[np.intp]:
    """Columns of grams that occur in at least `MIN_SOURCES` of the sources, and all columns of signs."""
    in_sources = np.zeros(matrix.shape[1], np.int32)
    for source in np.unique(sources):
        in_sources[np.unique(matrix[sources == source].indices)] += 1
    in_sources[BUCKETS:] = MIN_SOURCES
    return np.flatnonzero(in_sources >= MIN_SOURCES)


def weights_of_requests(types: NDArray[np.intp], sources: NDArray[np.str_]) -> Floats:
    """Each type counts the same; within a type a source counts by the square root of its requests."""
    weights = np.empty(len(types), np.float32)
    for source in np.unique(sources):
        mine = sources == source
        weights[mine] = 1.0 / np.sqrt(np.count_nonzero(mine))
    for text_type in np.unique(types):
        mine = types == text_type
        weights[mine] /= weights[mine].sum()
    return weights / weights.sum()


def fit(data: Featured, types: NDArray[np.intp], sources: NDArray[np.str_]) -> Floats:
    """Learned weights, (columns of `data.matrix`, text types)."""
    columns = common_columns(data.matrix, sources)
    matrix = data.matrix.tocsc()[:, columns].tocsr()
    transposed = matrix.T.tocsr()
    weights = weights_of_requests(types, sources)[:, None]
    truth = np.zeros((len(types), TYPES), np.float32)
    truth[np.arange(len(types)), types] = 1.0

    def loss(flat: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        learned = flat.reshape(-1, TYPES).astype(np.float32)
        scores = data.offset + matrix @ learned
        scores -= scores.max(axis=1, keepdims=True)
        log_total = np.log(np.exp(scores).sum(axis=1, keepdims=True))
        likelihood = float((weights * truth * (scores - log_total)).sum())
        gradient = transposed @ (weights * (np.exp(scores - log_total) - truth)) + PENALTY * learned
        value = -likelihood + PENALTY / 2 * float(np.square(flat).sum())
        return value, gradient.astype(np.float64).ravel()

    start = np.zeros(len(columns) * TYPES)
    found = minimize(loss, start, jac=True, method="L-BFGS-B", options={"maxiter": ITERATIONS, "maxcor": 6})
    learned = np.zeros((data.matrix.shape[1], TYPES), np.float32)
    learned[columns] = found.x.reshape(-1, TYPES)
    return learned


def scores_of(data: Featured, learned: Floats) -> Floats:
    """Log-odds, before the temperatures."""
    scores: Floats = data.offset + data.matrix @ learned
    return scores


def best_temperature(scores: Floats, types: NDArray[np.intp], weights: Floats, near: float | None = None) -> float:
    """The temperature at which the log-likelihood of the types is greatest, drawn to `near` where that is given."""

    def loss(log_temperature: float) -> float:
        scaled = scores / np.exp(log_temperature)
        scaled = scaled - scaled.max(axis=1, keepdims=True)
        likely = scaled[np.arange(len(types)), types] - np.log(np.exp(scaled).sum(axis=1))
        drawn = 0.0 if near is None else TEMPERATURE_PENALTY * (log_temperature - np.log(near)) ** 2
        return drawn - float((weights * likely).sum())

    return float(np.exp(minimize_scalar(loss, bounds=(-1.5, 2.5), method="bounded").x))


def best_temperatures(scores: Floats, types: NDArray[np.intp], weights: Floats) -> Floats:
    """By text type: the best temperature of the requests whose score of that type is the highest.

    Each is drawn to that of all requests, by `TEMPERATURE_PENALTY` · ln² of their ratio: some types are met too seldom.
    """
    common = best_temperature(scores, types, weights)
    top = scores.argmax(axis=1)
    return np.array(
        [
            best_temperature(scores[top == each], types[top == each], weights[top == each], near=common)
            for each in range(TYPES)
        ],
        np.float32,
    )


def probabilities_of(scores: Floats, temperatures: Floats) -> Floats:
    """Softmax by row, at the temperature of the row's highest score."""
    scaled = scores / temperatures[scores.argmax(axis=1)][:, None]
    exponents = np.exp(scaled - scaled.max(axis=1, keepdims=True))
    shares: Floats = exponents / exponents.sum(axis=1, keepdims=True)
    return shares


def model_of(learned: Floats, temperatures: Floats) -> TextModel:
    """The model with the weights, rounded as they ship."""
    grams = (learned[:BUCKETS] * GRAM_GAIN).astype(np.float16).astype(np.float32)
    return TextModel(
        gram_weights=grams,
        sign_weights=np.ascontiguousarray(learned[BUCKETS:]),
        temperatures=tuple(round(float(each), 3) for each in temperatures),
    )
