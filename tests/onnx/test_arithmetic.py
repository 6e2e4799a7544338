"""Programs about shapes, as exporters write them: computed at import, evaluated at each size."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import semel

onnx = pytest.importorskip("onnx")
parser = pytest.importorskip("onnx.parser")


def loaded(body: str, inputs: str, outputs: str = "y", version: int = 21) -> Any:
    """A model in the text format of ONNX, as it is, and compiled."""
    header = f'<ir_version: 10, opset_import: ["" : {version}]>'
    model = parser.parse_model(f"{header} g ({inputs}) => ({outputs}) {{ {body} }}")
    return model, semel.load(model, threads=1)


def agree(model: Any, compiled: Any, *inputs: Any) -> None:
    """The same as the reference, dtypes and shapes too."""
    from onnx.reference import ReferenceEvaluator

    names = [given.name for given in model.graph.input]
    expected = ReferenceEvaluator(model).run(None, dict(zip(names, inputs, strict=True)))
    found = compiled.run(*inputs)
    for output, wanted in zip(model.graph.output, expected, strict=True):
        assert found[output.name].shape == np.shape(wanted), output.name
        assert found[output.name].dtype == wanted.dtype, output.name
        np.testing.assert_allclose(found[output.name], wanted, 1e-5, 1e-6)


TAIL = "y = Expand(one, wanted)"
PROGRAMS = {
    "scaled and floored": """
        s = Shape(x) f = Cast<to=1>(s) half = Constant<value_float=0.7>() g = Mul(f, half)
        h = Floor(g) wanted = Cast<to=7>(h)""",
    "divided and rounded up": """
        s = Shape(x) f = Cast<to=1>(s) three = Constant<value_float=3.0>() g = Div(f, three)
        h = Ceil(g) wanted = Cast<to=7>(h)""",
    "a cast truncates": """
        s = Shape(x) f = Cast<to=1>(s) c = Constant<value_float=1.5>() g = Mul(f, c)
        wanted = Cast<to=7>(g)""",
    "modulo": """
        s = Shape(x) four = Constant<value_ints=[4, 4]>() m = Mod(s, four) wanted = Add(m, four)""",
    "a choice that only a run decides": """
        s = Shape(x) four = Constant<value_ints=[4, 4]>() c = Equal(s, four)
        d = Add(s, four) wanted = Where(c, d, four)""",
    "conditions": """
        s = Shape(x) four = Constant<value_ints=[4, 4]>() two = Constant<value_ints=[2, 2]>()
        a = Less(s, four) b = Greater(s, two) c = And(a, b) n = Not(c)
        i = Cast<to=7>(n) wanted = Add(i, two)""",
    "rows written into a vector": """
        s = Shape(x) zero = Constant<value_ints=[2]>() c = ConstantOfShape(zero)
        e = Cast<to=7>(c) index = Constant<value = int64[2,1] {1, 0}>()
        wanted = ScatterND(e, index, s)""",
    "the smaller side over both": """
        s = Shape(x) f = Cast<to=1>(s) low = ReduceMin<keepdims=1>(f) g = Div(f, low)
        h = Floor(g) wanted = Cast<to=7>(h)""",
    "split, clipped, negative": """
        s = Shape(x) a, b = Split<num_outputs=2>(s) n = Neg(b) m = Abs(n)
        low = Constant<value_int=3>() high = Constant<value_int=5>() k = Clip(m, low, high)
        wanted = Concat<axis=0>(a, k)""",
    "numbers in front": """
        s = Shape(x) nine = Constant<value_float=9.0>() r = Sqrt(nine) p = Cast<to=7>(r)
        zero = Constant<value_int=0>() one1 = Constant<value_int=1>() i = Range(zero, p, one1)
        t = ReduceSum<keepdims=0>(i) wanted = Add(s, t)""",
}


@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
def test_sizes_follow_the_reference_without_another_compile(program: str) -> None:
    model, compiled = loaded(
        f"one = Constant<value_float=1.0>() {program} {TAIL}", "float[a, b] x", "float[c, d] y"
    )
    for shape in ((10, 4), (4, 7), (3, 3), (1, 9)):
        agree(model, compiled, np.zeros(shape, np.float32))


def test_numbers_made_of_sizes_are_data_too() -> None:
    model, compiled = loaded(
        """s = Shape(x) f = Cast<to=1>(s) three = Constant<value_float=3.0>() g = Div(f, three)
           four = Constant<value_ints=[4, 4]>() c = Equal(s, four) b = Cast<to=1>(c)
           h = Add(g, b) y = Add(x, h)""",
        "float[a, 2] x",
        "float[a, 2] y",
    )
    for n in (1, 4, 5):
        agree(model, compiled, np.arange(2 * n, dtype=np.float32).reshape(n, 2))
