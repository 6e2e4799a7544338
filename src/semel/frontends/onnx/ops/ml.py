"""Operators of `ai.onnx.ml`: features, labels, linear models and trees.

Trees are walked all at once: every row goes down every tree together, one level after the other,
by gathers from the table of nodes. That takes as many steps as the deepest tree has levels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from onnx import numpy_helper

from semel.frontends.onnx.node import Converter, Node
from semel.ir.types import FLOAT32, INT64
from semel.runtime.buffer import Array
from semel.tensor.tensor import Tensor

DOMAIN = "ai.onnx.ml"
_COMPARISONS = ("BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ")


# ---------------------------------------------------------------- features


def _extract(node: Node) -> Tensor:
    return node.tensor().take(node.tensor(1).reshape(-1), -1)


def _binarize(node: Node) -> Tensor:
    x = node.tensor()
    return (x > node.number("threshold", 0.0)).cast(x.dtype)


def _scale(node: Node) -> Tensor:
    x = node.tensor().cast(FLOAT32)
    offset, factor = (_floats(node, name) for name in ("offset", "scale"))
    return (x - Tensor(offset)) * Tensor(factor)


def _floats(node: Node, name: str) -> Array:
    return np.asarray(node.attr(name), np.float32)


def _normalize(node: Node) -> Tensor:
    x, kind = node.tensor().cast(FLOAT32), node.attr("norm", "MAX")
    size = {
        "MAX": lambda: x.abs().max(-1, keepdims=True),
        "L1": lambda: x.abs().sum(-1, keepdims=True),
        "L2": lambda: (x * x).sum(-1, keepdims=True).sqrt(),
    }[kind]()
    return x / size.eq(0).where(1.0, size)


def _impute(node: Node) -> Tensor:
    x = node.tensor()
    kind = "float" if x.dtype.is_float else "int64"
    values = np.asarray(node.attr(f"imputed_value_{kind}s"), x.dtype.numpy)
    missing = node.attr(f"replaced_value_{kind}", 0)
    is_missing = x.isnan() if missing != missing else x.eq(missing)
    return is_missing.where(Tensor(values), x)


def _one_hot(node: Node) -> Tensor:
    x, kinds = node.tensor(), node.attr("cats_int64s")
    if kinds is None:
        raise node.refuse("categories of text are not supported.")
    return x.cast(INT64).unsqueeze(-1).eq(Tensor(np.asarray(kinds, np.int64))).cast(FLOAT32)


def _label(node: Node) -> Tensor:
    """Keys to values by a table; NaN is a key like others."""
    x = node.tensor()
    keys, values = _table(node, "keys"), _table(node, "values")
    default = _label_default(node, values)
    given = Tensor(keys.astype(x.dtype.numpy))
    hits = x.unsqueeze(-1).eq(given)
    if x.dtype.is_float and np.isnan(keys.astype(np.float64)).any():
        hits = hits | (x.isnan().unsqueeze(-1) & given.isnan())
    first = hits.cast(INT64).argmax(-1)
    return hits.any(-1).where(Tensor(values).take(first, 0), Tensor(default))


def _table(node: Node, what: str) -> Array:
    tensor = node.attr(f"{what}_tensor")
    if tensor is not None:
        return np.asarray(numpy_helper.to_array(tensor))
    for kind, dtype in (("int64s", np.int64), ("floats", np.float32)):
        found = node.attr(f"{what}_{kind}")
        if found is not None:
            return np.asarray(found, dtype)
    raise node.refuse(f"{what} of text are not supported here.")


def _label_default(node: Node, values: Array) -> Array:
    tensor = node.attr("default_tensor")
    if tensor is not None:
        return np.asarray(numpy_helper.to_array(tensor)).reshape(())
    is_float = values.dtype.kind == "f"
    found = node.attr("default_float", -0.0) if is_float else node.attr("default_int64", -1)
    return np.asarray(found, values.dtype)


# ---------------------------------------------------------------- linear models


def _linear_regressor(node: Node) -> Tensor:
    targets = node.attr("targets", 1)
    weights = _floats(node, "coefficients").reshape(targets, -1)
    y = node.tensor().cast(FLOAT32) @ Tensor(np.ascontiguousarray(weights.T))
    bias = node.attr("intercepts")
    y = y if bias is None else y + Tensor(np.asarray(bias, np.float32))
    return transformed(node, y)


def _linear_classifier(node: Node) -> list[Tensor]:
    labels = node.attr("classlabels_ints")
    if labels is None:
        raise node.refuse("labels of text are not supported.")
    bias = node.attr("intercepts")
    classes = len(bias) if bias else len(labels)
    weights = _floats(node, "coefficients")
    features = node.size(node.value().shape[-1])
    weights = weights[: classes * features]  # as ONNX Runtime, which does not look at others
    weights = weights.reshape(classes, -1)
    scores = node.tensor().cast(FLOAT32) @ Tensor(np.ascontiguousarray(weights.T))
    scores = scores if bias is None else scores + Tensor(np.asarray(bias, np.float32))
    if scores.shape[-1] == 1 and len(labels) == 2:
        scores = Tensor.concat([-scores, scores], -1)
    return [label_of(labels, scores), transformed(node, scores)]


def label_of(labels: list[int], scores: Tensor) -> Tensor:
    """The label of the highest score."""
    return Tensor(np.asarray(labels, np.int64)).take(scores.argmax(-1), 0)


def transformed(node: Node, x: Tensor) -> Tensor:
    """Scores as a node's post_transform has them."""
    kind = node.attr("post_transform", "NONE")
    if isinstance(kind, int):  # of TreeEnsemble, which numbers them
        kind = ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT")[kind]
    made: dict[str, Callable[[], Tensor]] = {
        "NONE": lambda: x,
        "LOGISTIC": x.sigmoid,
        "SOFTMAX": lambda: x.softmax(-1),
        "SOFTMAX_ZERO": lambda: x.eq(0).where(0.0, x.eq(0).where(-np.inf, x).softmax(-1)),
    }
    if kind not in made:
        raise node.refuse(f"post_transform {kind} is not supported.")
    return made[kind]()


# ---------------------------------------------------------------- trees


@dataclass(eq=False)
class _Forest:
    """The nodes of all trees in one table; a leaf is its own child.

    `mode` is a position in `_COMPARISONS`; `rows` are what leaves give, by node.
    """

    roots: Array
    feature: Array
    value: Array
    mode: Array
    yes: Array
    no: Array
    nan_yes: Array
    rows: Array
    depth: int


def _walk(forest: _Forest, x: Tensor) -> Tensor:
    """The leaf of each row in each tree: (rows, trees)."""
    at = Tensor(forest.roots).unsqueeze(0).broadcast_to((x.shape[0], len(forest.roots)))
    tables = [Tensor(t) for t in (forest.feature, forest.value, forest.mode)]
    yes, no = Tensor(forest.yes), Tensor(forest.no)
    takes_nan = Tensor(forest.nan_yes) if forest.nan_yes.any() else None
    modes = sorted(set(forest.mode.tolist()))
    for _ in range(forest.depth):
        feature, value, mode = (table.take(at, 0) for table in tables)
        given = x.take_along_axis(feature, 1)
        holds = _compared(given, value, modes[0])
        for other in modes[1:]:
            holds = mode.eq(other).where(_compared(given, value, other), holds)
        if takes_nan is not None:
            holds = holds | (given.isnan() & takes_nan.take(at, 0))
        at = holds.where(yes.take(at, 0), no.take(at, 0))
    return at


def _compared(x: Tensor, value: Tensor, mode: int) -> Tensor:
    return (
        lambda: x <= value,
        lambda: x < value,
        lambda: x >= value,
        lambda: x > value,
        lambda: x.eq(value),
        lambda: x.ne(value),
    )[mode]()


def _summed(node: Node, forest: _Forest, x: Tensor, how: str) -> Tensor:
    """What the leaves give, over all trees."""
    found = Tensor(forest.rows).take(_walk(forest, x), 0)  # (rows, trees, targets)
    if how == "AVERAGE":
        return found.mean(1)
    if how in ("MIN", "MAX"):
        return found.min(1) if how == "MIN" else found.max(1)
    return found.sum(1)


def _depth(roots: Array, yes: Array, no: Array) -> int:
    """Levels below the roots, by walking all of them at once."""
    level, depth = set(roots.tolist()), 0
    while True:
        level = {child for i in level if yes[i] != i for child in (int(yes[i]), int(no[i]))}
        if not level:
            return depth
        depth += 1
        if depth > len(yes):
            raise ValueError("a tree must not come back to a node")


def _tree_ensemble(node: Node) -> Tensor:
    """Version 5: nodes and leaves in tables of their own, sets of members as chains of nodes."""
    splits = np.asarray(numpy_helper.to_array(node.attr("nodes_splits")))
    modes = np.asarray(numpy_helper.to_array(node.attr("nodes_modes"))).astype(np.int64)
    count = len(splits)
    leaf_values = np.asarray(numpy_helper.to_array(node.attr("leaf_weights")))
    targets = np.asarray(node.attr("leaf_targetids"), np.int64)
    table = _Table(node, count, splits.dtype)
    for i in range(count):
        table.add(i, int(modes[i]), splits[i])
    if node.attr("membership_values") is not None:
        members = np.asarray(numpy_helper.to_array(node.attr("membership_values")))
        table.spread_members(modes, members)
    forest = table.forest(leaf_values, targets, node.attr("n_targets", 1))
    how = ("AVERAGE", "SUM", "MIN", "MAX")[node.attr("aggregate_function", 1)]
    x = node.tensor()
    return transformed(node, _summed(node, forest, x, how).cast(x.dtype))


class _Table:
    """Nodes of trees of version 5, as they are gathered into a forest.

    The standard's order of modes is LEQ, LT, GTE, GT, EQ, NEQ, MEMBER.
    """

    def __init__(self, node: Node, count: int, dtype: Any) -> None:
        self.node, self.count, self.dtype = node, count, dtype
        self.feature = [int(f) for f in node.attr("nodes_featureids")]
        self.value: list[Any] = [0] * count
        self.mode = [0] * count
        truth, false = node.attr("nodes_trueleafs"), node.attr("nodes_falseleafs")
        # A child is a node, or a leaf: those come behind all nodes.
        self.yes = self._children(node.attr("nodes_truenodeids"), truth)
        self.no = self._children(node.attr("nodes_falsenodeids"), false)
        nan = node.attr("nodes_missing_value_tracks_true") or [0] * count
        self.nan_yes = [bool(n) for n in nan]

    def _children(self, ids: list[int], is_leaf: list[int]) -> list[tuple[bool, int]]:
        return [(bool(leaf), int(i)) for i, leaf in zip(ids, is_leaf, strict=True)]

    def add(self, i: int, mode: int, value: Any) -> None:
        self.mode[i], self.value[i] = mode, value

    def spread_members(self, modes: Array, members: Array) -> None:
        """A node that asks for members of a set becomes one node for each of them."""
        sets = _split_sets(members)
        for i in np.flatnonzero(modes == len(_COMPARISONS)):
            own = sets.pop(0)
            yes, no = self.yes[i], self.no[i]
            at = int(i)
            for j, member in enumerate(own):
                self.mode[at], self.value[at] = _COMPARISONS.index("BRANCH_EQ"), member
                self.yes[at] = yes
                if j == len(own) - 1:
                    self.no[at] = no
                    break
                self.no[at] = (False, len(self.mode))
                self._add_like(int(i))
                at = len(self.mode) - 1

    def _add_like(self, i: int) -> None:
        self.feature.append(self.feature[i])
        self.value.append(0)
        self.mode.append(0)
        self.yes.append(self.yes[i])
        self.no.append(self.no[i])
        self.nan_yes.append(False)

    def forest(self, weights: Array, targets: Array, num_targets: int) -> _Forest:
        count, leaves = len(self.mode), len(weights)
        roots = np.asarray(self.node.attr("tree_roots"), np.int64)
        children = [*self.yes, *self.no]
        _check_within("tree_roots", roots, self.count)
        _check_within("nodes_featureids", self.feature)
        _check_within(
            "the ids of nodes below", [i for is_leaf, i in children if not is_leaf], count
        )
        _check_within("the ids of leaves", [i for is_leaf, i in children if is_leaf], leaves)
        _check_within("leaf_targetids", targets, num_targets)
        place = lambda child: child[1] + count if child[0] else child[1]  # noqa: E731
        own = list(range(count, count + leaves))
        yes = np.asarray([*map(place, self.yes), *own], np.int64)
        no = np.asarray([*map(place, self.no), *own], np.int64)
        rows = np.zeros((count + leaves, num_targets), weights.dtype)
        rows[np.arange(count, count + leaves), targets] = weights
        pad = [0] * leaves
        return _Forest(
            roots,
            np.asarray([*self.feature, *pad], np.int64),
            np.asarray([*self.value, *pad], self.dtype),
            np.asarray([*self.mode, *pad], np.int64),
            yes,
            no,
            np.asarray([*self.nan_yes, *([False] * leaves)]),
            rows,
            _depth(roots, yes, no),
        )


def _check_within(what: str, ids: Iterable[int], count: int | None = None) -> None:
    """A negative position is none: it would be taken for one from the end."""
    stray = [int(i) for i in ids if i < 0 or (count is not None and i >= count)]
    if stray:
        room = "at least 0" if count is None else f"in [0, {count})"
        raise ValueError(f"{what} must be {room}, got {stray[0]}")


def _split_sets(members: Array) -> list[list[Any]]:
    """Sets that are written one after the other, each with a NaN behind it."""
    sets: list[list[Any]] = [[]]
    for member in members.tolist():
        if member != member:
            sets.append([])
        else:
            sets[-1].append(member)
    return sets


def _old_forest(node: Node, leaf: str, num_targets: int) -> _Forest:
    """The tables of the older operators: nodes by tree and number."""
    trees, ids = node.attr("nodes_treeids"), node.attr("nodes_nodeids")
    place = {(t, i): k for k, (t, i) in enumerate(zip(trees, ids, strict=True))}
    modes, own = node.attr("nodes_modes"), range(len(trees))
    yes = np.arange(len(trees), dtype=np.int64)
    no = yes.copy()
    is_child = np.zeros(len(trees), bool)
    for k, mode in enumerate(modes):
        if mode != "LEAF":
            yes[k] = place[trees[k], node.attr("nodes_truenodeids")[k]]
            no[k] = place[trees[k], node.attr("nodes_falsenodeids")[k]]
            is_child[[yes[k], no[k]]] = True
    rows = np.zeros((len(trees), num_targets), np.float32)
    for tree, i, target, weight in zip(
        *(node.attr(f"{leaf}_{what}") for what in ("treeids", "nodeids", "ids", "weights")),
        strict=True,
    ):
        rows[place[tree, i], target] += weight
    roots = np.asarray([k for k in own if not is_child[k]], np.int64)
    nan = node.attr("nodes_missing_value_tracks_true") or [0] * len(trees)
    numbers = [0 if mode == "LEAF" else _COMPARISONS.index(mode) for mode in modes]
    inner = [numbers[k] for k in own if modes[k] != "LEAF"]
    spare = inner[0] if inner else 0  # leaves ask like the others, so that there are fewer ways
    mode = [spare if modes[k] == "LEAF" else numbers[k] for k in own]
    return _Forest(
        roots,
        np.asarray(node.attr("nodes_featureids"), np.int64),
        np.asarray(node.attr("nodes_values"), np.float32),
        np.asarray(mode, np.int64),
        yes,
        no,
        np.asarray(nan, bool),
        rows,
        _depth(roots, yes, no),
    )


def _tree_regressor(node: Node) -> Tensor:
    targets = node.attr("n_targets", 1)
    forest = _old_forest(node, "target", targets)
    how = node.attr("aggregate_function", "SUM")
    y = _summed(node, forest, node.tensor().cast(FLOAT32), how)
    base = node.attr("base_values")
    return transformed(node, y if base is None else y + Tensor(np.asarray(base, np.float32)))


def _tree_classifier(node: Node) -> list[Tensor]:
    labels = node.attr("classlabels_int64s")
    if labels is None:
        raise node.refuse("labels of text are not supported.")
    given = sorted(set(node.attr("class_ids")))
    is_binary = len(labels) == 2 and len(given) == 1
    forest = _old_forest(node, "class", len(labels) if not is_binary else max(given) + 1)
    scores = _summed(node, forest, node.tensor().cast(FLOAT32), "SUM")
    base = node.attr("base_values")
    if is_binary:
        score = scores.narrow(1, given[0], 1)
        score = score if base is None else score + float(base[0])
        return _binary(node, score, labels)
    scores = scores if base is None else scores + Tensor(np.asarray(base, np.float32))
    best = label_of(labels, scores)
    return [best, transformed(node, scores)]


def _binary(node: Node, score: Tensor, labels: list[int]) -> list[Tensor]:
    """Two classes with the score of one."""
    kind = node.attr("post_transform", "NONE")
    is_chance = kind == "NONE" and min(node.attr("class_weights"), default=0) >= 0
    chosen = (score > (0.5 if is_chance else 0.0)).squeeze(-1)
    best = chosen.where(Tensor(np.int64(labels[1])), Tensor(np.int64(labels[0])))
    if is_chance:
        return [best, Tensor.concat([1 - score, score], -1)]
    if kind == "LOGISTIC":
        chance = score.sigmoid()
        return [best, Tensor.concat([1 - chance, chance], -1)]
    return [best, transformed(node, Tensor.concat([-score, score], -1))]


CONVERTERS: dict[str, Converter] = {
    "ArrayFeatureExtractor": _extract,
    "Binarizer": _binarize,
    "Imputer": _impute,
    "LabelEncoder": _label,
    "LinearClassifier": _linear_classifier,
    "LinearRegressor": _linear_regressor,
    "Normalizer": _normalize,
    "OneHotEncoder": _one_hot,
    "Scaler": _scale,
    "TreeEnsemble": _tree_ensemble,
    "TreeEnsembleClassifier": _tree_classifier,
    "TreeEnsembleRegressor": _tree_regressor,
}
