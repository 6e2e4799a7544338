"""Labels and categories that are text, apart from the numbers that are computed with them.

    classifier with labels of text  -->  classifier with numbers, LabelEncoder: number to text
    OneHotEncoder of text           -->  LabelEncoder: text to number, OneHotEncoder of numbers

What is left with text are tables, which the host looks up; everything else is compiled.
"""

from __future__ import annotations

from typing import Any

from onnx import GraphProto, NodeProto, helper

DOMAIN = "ai.onnx.ml"
#: What has labels of text in `classlabels_strings`, and where its labels of numbers are.
_CLASSIFIERS = {
    "LinearClassifier": "classlabels_ints",
    "SVMClassifier": "classlabels_ints",
    "TreeEnsembleClassifier": "classlabels_int64s",
}


def number_labels(graph: GraphProto) -> None:
    """Give classes and categories numbers, with tables of text beside them."""
    nodes: list[NodeProto] = []
    for node in graph.node:
        nodes += _apart(node) if node.domain == DOMAIN else [node]
    if len(nodes) > len(graph.node):
        kept = [_copy(node) for node in nodes]
        del graph.node[:]
        graph.node.extend(kept)


def _apart(node: NodeProto) -> list[NodeProto]:
    if node.op_type in _CLASSIFIERS:
        return _classifier(node)
    if node.op_type == "OneHotEncoder":
        return _one_hot(node)
    return [node]


def _classifier(node: NodeProto) -> list[NodeProto]:
    labels = _strings(node, "classlabels_strings")
    if not labels:
        return [node]
    numbers, own = list(range(len(labels))), f"{node.output[0]}/number"
    made = _replaced(node, "classlabels_strings", _CLASSIFIERS[node.op_type], numbers)
    table = helper.make_node(
        "LabelEncoder",
        [own],
        [node.output[0]],
        f"{node.name}/labels",
        domain=DOMAIN,
        keys_int64s=numbers,
        values_strings=labels,
    )
    made.output[0] = own
    return [made, table]


def _one_hot(node: NodeProto) -> list[NodeProto]:
    kinds = _strings(node, "cats_strings")
    if not kinds:
        return [node]
    numbers, own = list(range(len(kinds))), f"{node.output[0]}/number"
    made = _replaced(node, "cats_strings", "cats_int64s", numbers)
    table = helper.make_node(
        "LabelEncoder",
        [node.input[0]],
        [own],
        f"{node.name}/categories",
        domain=DOMAIN,
        keys_strings=kinds,
        values_int64s=numbers,
        default_int64=-1,
    )
    made.input[0] = own
    return [table, made]


def _strings(node: NodeProto, name: str) -> list[bytes]:
    return next((list(a.strings) for a in node.attribute if a.name == name), [])


def _replaced(node: NodeProto, old: str, new: str, value: Any) -> NodeProto:
    """The node with another attribute in the place of one."""
    made = _copy(node)
    kept = [a for a in node.attribute if a.name not in (old, new)]
    del made.attribute[:]
    made.attribute.extend([*kept, helper.make_attribute(new, value)])
    return made


def _copy(node: NodeProto) -> NodeProto:
    made = NodeProto()
    made.CopyFrom(node)
    return made
