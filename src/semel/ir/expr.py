"""Integer expressions: symbolic dims, indices, tile counts, guards.

    Variable, Index --(+ - * // %, minimum, maximum)--> int | Expr

One algebra serves the whole compiler: a dim is an expression over variables, a
memory index is one over loop indices and variables. An `Expr` is a polynomial
over *atoms* with integer coefficients, in one canonical form, so that equality
is structural and `i*n + j - j` is `i*n`. What a polynomial cannot say (division,
remainder, min, max) is an atom of its own. A constant is always a plain int.

Invariant: terms are sorted, coefficients are non-zero, an `Expr` is never constant.
Division rounds down, as in Python; divisors are positive: the compiler makes no others, for
those of users there is a guard, and a negative number gives its sign to the dividend.
Simplification uses the ranges of the atoms: a loop index lies in [0, extent), a variable
in [min, max].

One idea: the algebra is closed, so that each operation must know every kind of atom, and they
cannot be told apart by file.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import gcd, inf
from operator import index
from typing import TYPE_CHECKING, Any, TypeAlias
from weakref import WeakValueDictionary

from semel.errors import GraphError, VariableError
from semel.ir import questions

Monomial: TypeAlias = "tuple[Atom, ...]"
#: Terms of one product: more are no size, but an expression made to grow.
MAX_PRODUCT = 1 << 14
#: Powers of a size that are a product.
_MAX_POWER = 8
#: Terms of a quotient that is looked for.
MAX_QUOTIENT = 32


def _on_dims(method: Callable[[Any, Dim], Dim]) -> Callable[[Any, Dim], Dim]:
    """An operator whose other operand is a dim, or takes the operation over.

    A tensor does, which has a `_weak_kind`; so do classes whose `__array_ufunc__` is None.
    """

    def checked(self: Any, other: Any) -> Any:
        if type(other) is not int and not isinstance(other, _Arithmetic):
            if _takes_over(other):
                return NotImplemented
            real = _as_real(self) if isinstance(other, float) else None
            if real is not None:
                return getattr(real, method.__name__)(other)
            other = _number(other)
        return method(self, other)

    return checked


def _takes_over(other: Any) -> bool:
    return hasattr(other, "_weak_kind") or getattr(other, "__array_ufunc__", _number) is None


def _as_real(dim: Dim) -> Any:
    """The size as a number that is no int, for a trace; None outside of one."""
    found = questions.answers()
    return None if found is None else found.real(dim)


def _on_reals(name: str) -> Callable[[Any, Any], Any]:
    """An operator whose result is no size: a trace calculates with it, else Python refuses it."""

    def operate(self: Any, other: Any) -> Any:
        if _takes_over(other):
            return NotImplemented
        real = _as_real(self)
        return NotImplemented if real is None else getattr(real, name)(other)

    return operate


def _asked(relation: str) -> Callable[[Any, Any], Any]:
    """A comparison that only a trace can answer: elsewhere Python refuses it."""

    def ask(self: Any, other: Any) -> Any:
        answer = questions.compare(relation, self, other)
        return NotImplemented if answer is None else answer

    return ask


def _number(value: Any) -> int:
    """Python's and NumPy's integers as ints."""
    try:
        return index(value)
    except TypeError:
        raise GraphError(
            "dim", f"must be an int, a Variable or an expression of them, got {value!r}."
        ) from None


class _Arithmetic:
    """Operators shared by atoms and expressions; results are canonical.

    Expressions are nested, serve as keys everywhere and are sorted and written again and
    again, so each remembers its hash, its text and its place in an order.
    """

    _hash: int

    def __hash__(self) -> int:
        try:
            return self._hash
        except AttributeError:
            known = hash((type(self).__name__, *self._parts()))
            self.__dict__["_hash"] = known
            return known

    def __str__(self) -> str:
        known: str | None = self.__dict__.get("_text")
        if known is None:
            known = self.__dict__["_text"] = self._format()
        return known

    def _key(self) -> tuple[Any, ...]:
        """What atoms are sorted by."""
        known: tuple[Any, ...] | None = self.__dict__.get("_order")
        if known is None:
            known = self.__dict__["_order"] = self._make_key()
        return known

    def _format(self) -> str:
        raise NotImplementedError

    def _make_key(self) -> tuple[Any, ...]:
        raise NotImplementedError

    def __call__(self, *args: Any, **named: Any) -> Any:
        """What `answering` was given; other sizes cannot be called."""
        answer = self.__dict__.get("_answer")
        if answer is None:
            raise TypeError(
                f"'{self}' is a size and cannot be called: x.shape[0] is the size of an axis."
            )
        return answer(*args, **named)

    def __reduce__(self) -> tuple[Any, ...]:
        # Not the hash: strings hash differently in another process.
        return type(self), self._parts()

    def _parts(self) -> tuple[Any, ...]:
        """The fields, in order: what equality compares."""
        raise NotImplementedError

    @_on_dims
    def __add__(self, other: Dim) -> Dim:
        return add(self, other)  # type: ignore[arg-type]

    @_on_dims
    def __radd__(self, other: Dim) -> Dim:
        return add(other, self)  # type: ignore[arg-type]

    @_on_dims
    def __sub__(self, other: Dim) -> Dim:
        return add(self, mul(-1, other))  # type: ignore[arg-type]

    @_on_dims
    def __rsub__(self, other: Dim) -> Dim:
        return add(other, mul(-1, self))  # type: ignore[arg-type]

    @_on_dims
    def __mul__(self, other: Dim) -> Dim:
        return mul(self, other)  # type: ignore[arg-type]

    @_on_dims
    def __rmul__(self, other: Dim) -> Dim:
        return mul(other, self)  # type: ignore[arg-type]

    @_on_dims
    def __floordiv__(self, other: Dim) -> Dim:
        return floordiv(self, other)  # type: ignore[arg-type]

    @_on_dims
    def __rfloordiv__(self, other: Dim) -> Dim:
        return floordiv(other, self)  # type: ignore[arg-type]

    @_on_dims
    def __mod__(self, other: Dim) -> Dim:
        return mod(self, other)  # type: ignore[arg-type]

    @_on_dims
    def __rmod__(self, other: Dim) -> Dim:
        return mod(other, self)  # type: ignore[arg-type]

    def __neg__(self) -> Dim:
        return mul(-1, self)  # type: ignore[arg-type]

    # ------------------------------------------------------------ what only a trace knows

    if not TYPE_CHECKING:  # to checkers, dims are no numbers

        def __eq__(self, other: object) -> Any:
            """Whether it is the same expression; to those who are traced, the same number."""
            if self is other:
                return True
            if questions.num_open and questions.is_users(sys._getframe(1)):
                answer = questions.compare("eq", self, other)
                if answer is not None:
                    return answer
            if type(other) is not type(self):
                return NotImplemented
            return self._parts() == other._parts()

        def __pow__(self, other: Any) -> Any:
            if type(other) is int and 0 <= other <= _MAX_POWER:
                return product([self] * other)
            return _real_power(self, other)

        __truediv__, __rtruediv__ = _on_reals("__truediv__"), _on_reals("__rtruediv__")
        __rpow__ = _on_reals("__rpow__")

        __lt__, __le__ = _asked("lt"), _asked("le")
        __gt__, __ge__ = _asked("gt"), _asked("ge")

        def __bool__(self) -> bool:
            if questions.num_open and questions.is_users(sys._getframe(1)):
                return questions.compare("ne", self, 0) is not False
            return True

        def __index__(self) -> int:
            found = questions.answers()
            number = None if found is None else found.number(self)
            if number is None:
                raise TypeError(
                    f"'{self}' is a size that each run has anew: it is no int. Calculate with it "
                    "as it is, or write the number that you mean."
                )
            return number

        def __float__(self) -> float:
            return float(index(self))

        def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
            """To NumPy an object like others; while it is traced, a number."""
            import numpy as np

            if questions.answers() is not None:
                return np.array(index(self), dtype)
            found = np.empty((), object)
            found[()] = self
            return found


def answering(dim: Symbolic, answer: Callable[..., Any]) -> Symbolic:
    """The same expression, equal to it everywhere, that can be called, too: `x.size(0)`."""
    if isinstance(dim, LateVariable):
        return dim
    made: Symbolic = object.__new__(type(dim))
    made.__dict__.update(dim.__dict__, _answer=answer)
    return made


def as_number(dim: Dim) -> int:
    """A size as an int, which only a trace knows: TypeError elsewhere."""
    return index(dim)  # type: ignore[arg-type]  # to checkers, dims are no ints


_real_power = _on_reals("__pow__")


@dataclass(frozen=True, eq=False)
class Variable(_Arithmetic):
    """A named size that may change from run to run, within [min, max].

    `max=None` means no upper bound is known: memory then grows when a larger
    value is bound. A value may be negative if `min` allows; where it is a dim, a
    guard refuses it. Two variables are the same if name and bounds are.

    >>> n = Variable("n", 1, 64)
    >>> Tensor.input("x", (n, 2 * n + 1)).flatten().shape
    (2*n*n + n,)
    """

    name: str  #: what it is bound by
    min: int  #: the least value that may be bound
    max: int | None = None  #: the largest; None: there is no bound

    def __post_init__(self) -> None:
        if not str.isidentifier(str(self.name)) or type(self.name) is not str:
            raise GraphError("Variable", f"name must be an identifier, got {self.name!r}.")
        if self.name == "core_id":
            raise GraphError("Variable", "the name 'core_id' is reserved.")
        for name, bound in (("min", self.min), ("max", self.max)):
            if type(bound) is not int and not (bound is None and name == "max"):
                found = f"{name} of '{self.name}' must be an int, got {bound!r}."
                raise GraphError("Variable", found)
        if self.max is not None and self.max < self.min:
            raise GraphError(
                "Variable", f"'{self.name}' needs min <= max, got [{self.min}, {self.max}]."
            )

    def _parts(self) -> tuple[Any, ...]:
        return self.name, self.min, self.max

    def _make_key(self) -> tuple[Any, ...]:
        return (0, self.name, self.min, self.max is not None, self.max or 0)

    def range(self) -> tuple[int | None, int | None]:
        """(min, max), as every expression has them; None: no bound is known."""
        return self.min, self.max

    def bind(self, value: int) -> tuple[str, int]:
        """(name, value), checked: what `prepare(bindings=[...])` and `execute_with_vars` take."""
        if isinstance(value, (bool, _Arithmetic)) or not hasattr(value, "__index__"):
            raise VariableError(
                "bind", f"variable '{self.name}' must be an int, got {value!r}.", variable=self.name
            )
        number = index(value)
        if number < self.min or (self.max is not None and number > self.max):
            top = "..." if self.max is None else self.max
            raise VariableError(
                "bind",
                f"variable '{self.name}' must lie in [{self.min}, {top}], got {number}.",
                variable=self.name,
                value=number,
                min=self.min,
                max=self.max,
            )
        return self.name, number

    def _format(self) -> str:
        return self.name


@dataclass(frozen=True, eq=False)
class LateVariable(Variable):
    """A size that a run finds out itself: how many elements of a mask are true.

    Nobody binds it. It is at most `limit`, an expression over variables that are known before
    it; `max` is what is known of that beforehand.
    """

    limit: Dim = 0

    def _parts(self) -> tuple[Any, ...]:
        return self.name, self.min, self.max, self.limit


@dataclass(frozen=True, eq=False)
class Index(_Arithmetic):
    """A loop index, or an index read from memory: an integer in [0, extent).

    Equal ones are one object as far as possible: they are compared all the time, as keys above all.
    """

    name: str
    extent: Dim

    def __new__(cls, name: str, extent: Dim) -> Index:
        known = _indices.get((name, extent))
        if known is None:
            known = _indices[name, extent] = super().__new__(cls)
        return known

    def _parts(self) -> tuple[Any, ...]:
        return self.name, self.extent

    def _make_key(self) -> tuple[Any, ...]:
        return (1, self.name, str(self.extent))

    def range(self) -> tuple[int | None, int | None]:
        high = upper_bound(self.extent)
        return 0, None if high is None else max(high - 1, 0)

    def _format(self) -> str:
        return self.name


_indices: WeakValueDictionary[tuple[str, Dim], Index] = WeakValueDictionary()


@dataclass(frozen=True, eq=False)
class Fn(_Arithmetic):
    """An atom that is a function of expressions: `floordiv`, `mod`, `min`, `max`."""

    kind: str
    args: tuple[Dim, ...]

    def _parts(self) -> tuple[Any, ...]:
        return self.kind, self.args

    def _make_key(self) -> tuple[Any, ...]:
        return (2, self.kind, *(str(a) for a in self.args))

    def range(self) -> tuple[int | None, int | None]:
        ranges = [bounds(a) for a in self.args]
        (low_a, high_a), (low_b, high_b) = ranges[0], ranges[1]
        match self.kind:
            case "mod":
                # The sign is the divisor's, which is never 0.
                low = None if low_b is None else min(low_b + 1, 0)
                return low, None if high_b is None else max(high_b - 1, 0)
            case "floordiv":
                if low_b is None or low_b <= 0:
                    return None, None
                low = None if low_a is None else _corner(low_a, low_b, high_b, low=True)
                high = None if high_a is None else _corner(high_a, low_b, high_b, low=False)
                return low, high
            case "min":
                low = None if low_a is None or low_b is None else min(low_a, low_b)
                highs = [h for h in (high_a, high_b) if h is not None]
                return low, min(highs) if highs else None
            case _:
                lows = [v for v in (low_a, low_b) if v is not None]
                high = None if high_a is None or high_b is None else max(high_a, high_b)
                return max(lows) if lows else None, high

    def _format(self) -> str:
        a, b = self.args
        if self.kind in ("floordiv", "mod"):
            sides = [f"({x})" if isinstance(x, Expr) else str(x) for x in (a, b)]
            return "(" + (" // " if self.kind == "floordiv" else " % ").join(sides) + ")"
        return f"{self.kind}({a}, {b})"


def _corner(a: int, low_b: int, high_b: int | None, *, low: bool) -> int:
    """The extreme value of a // b for b in [low_b, high_b]."""
    if (a >= 0) == low:
        return (0 if a >= 0 else -1) if high_b is None else a // high_b
    return a // low_b


Atom: TypeAlias = "Variable | Index | Fn"


@dataclass(frozen=True, eq=False)
class Expr(_Arithmetic):
    """A sum of products of atoms: `terms` maps each monomial to its coefficient."""

    terms: tuple[tuple[Monomial, int], ...]

    def _parts(self) -> tuple[Any, ...]:
        return (self.terms,)

    def _format(self) -> str:
        parts = []
        for monomial, coefficient in self.terms:
            factors = [str(a) for a in monomial]
            if coefficient != 1 or not factors:
                factors.insert(0, str(coefficient))
            parts.append("*".join(factors))
        return " + ".join(parts).replace("+ -", "- ")

    __repr__ = _Arithmetic.__str__


Symbolic: TypeAlias = "Variable | Index | Fn | Expr"
Dim: TypeAlias = "int | Symbolic"


def _terms(value: Dim) -> dict[Monomial, int]:
    return dict(terms(value))


def _build(terms: Mapping[Monomial, int]) -> Dim:
    kept = {m: c for m, c in terms.items() if c}
    if not kept:
        return 0
    if _has_remainder(kept):
        kept = _rejoin(kept)
    if len(kept) == 1:
        ((monomial, coefficient),) = kept.items()
        if not monomial:
            return coefficient
        if coefficient == 1 and len(monomial) == 1:
            return monomial[0]
    return Expr(tuple(sorted(kept.items(), key=_term_order)))


def _has_remainder(terms: Iterable[Monomial]) -> bool:
    for monomial in terms:
        for atom in monomial:
            if type(atom) is Fn and atom.kind == "mod":
                return True
    return False


def _term_order(term: tuple[Monomial, int]) -> tuple[Any, ...]:
    """What the terms of a sum are sorted by."""
    return -len(term[0]), [atom._key() for atom in term[0]]


def _rejoin(terms: dict[Monomial, int]) -> dict[Monomial, int]:
    """x//d * d + x%d is x: what a reshape took apart, another puts together."""
    for monomial, coefficient in list(terms.items()):
        for position, atom in enumerate(monomial):
            if not isinstance(atom, Fn) or atom.kind != "mod" or monomial not in terms:
                continue
            whole, divisor = atom.args
            rest = monomial[:position] + monomial[position + 1 :]
            factor = _build({rest: coefficient})
            # In canonical form: (m // 14) // 14 is m // 196.
            partner = _terms(mul(mul(factor, divisor), _atom_div(whole, divisor)))
            if all(terms.get(m) == c for m, c in partner.items()):
                joined = {m: c for m, c in terms.items() if m != monomial and m not in partner}
                for m, c in _terms(mul(factor, whole)).items():
                    joined[m] = joined.get(m, 0) + c
                return _rejoin({m: c for m, c in joined.items() if c})
    return terms


def add(a: Dim, b: Dim) -> Dim:
    """a + b, canonical."""
    if isinstance(a, int) and isinstance(b, int):
        return a + b
    return _add(a, b)


@lru_cache(maxsize=65536)
def _add(a: Dim, b: Dim) -> Dim:
    total = _terms(a)
    for monomial, coefficient in terms(b):
        total[monomial] = total.get(monomial, 0) + coefficient
    return _build(total)


def add_products(products: Iterable[tuple[int, Sequence[Atom]]]) -> Dim:
    """The sum of products, each of a number and atoms, canonical."""
    total: dict[Monomial, int] = {}
    for coefficient, factors in products:
        monomial = tuple(sorted(factors, key=_Arithmetic._key))
        total[monomial] = total.get(monomial, 0) + coefficient
    return _build(total)


def mul(a: Dim, b: Dim) -> Dim:
    """a * b, canonical."""
    if isinstance(a, int) and isinstance(b, int):
        return a * b
    return _mul(a, b)


@lru_cache(maxsize=65536)
def _mul(a: Dim, b: Dim) -> Dim:
    total: dict[Monomial, int] = {}
    left, right = terms(a), terms(b)
    if len(left) * len(right) > MAX_PRODUCT:
        raise GraphError(
            "dim",
            f"a product must have at most {MAX_PRODUCT} terms, got {len(left)} x {len(right)}.",
        )
    for m1, c1 in left:
        for m2, c2 in right:
            monomial = m1 + m2
            if m1 and m2:
                monomial = tuple(sorted(monomial, key=_Arithmetic._key))
            total[monomial] = total.get(monomial, 0) + c1 * c2
    return _build(total)


def product(values: Iterable[Dim]) -> Dim:
    """The product of all values; 1 for none."""
    result: Dim = 1
    for value in values:
        if isinstance(result, int) and isinstance(value, int):
            result *= value
        else:
            result = _mul(result, value)
    return result


def sum_dims(values: Iterable[Dim]) -> Dim:
    """The sum of all values; 0 for none."""
    result: Dim = 0
    for value in values:
        result = add(result, value)
    return result


def floordiv(a: Dim, b: Dim) -> Dim:
    """a // b, rounding down; simplified where the ranges of the atoms allow it."""
    if b == 0:
        raise GraphError("dim", f"division of {a} by zero.")
    if isinstance(a, int) and isinstance(b, int):
        return a // b
    if isinstance(b, int) and b < 0:
        return _divmod(mul(-1, a), -b)[0]
    return _divmod(a, b)[0]


def mod(a: Dim, b: Dim) -> Dim:
    """a % b, with the sign of b."""
    if b == 0:
        raise GraphError("dim", f"remainder of {a} by zero.")
    if isinstance(a, int) and isinstance(b, int):
        return a % b
    if isinstance(b, int) and b < 0:
        return mul(-1, _divmod(mul(-1, a), -b)[1])
    return _divmod(a, b)[1]


@lru_cache(maxsize=65536)
def _divmod(a: Dim, b: Dim) -> tuple[Dim, Dim]:
    if b == 1:
        return a, 0
    if a == b:
        return 1, 0
    divisible: dict[Monomial, int] = {}
    rest: dict[Monomial, int] = {}
    for monomial, coefficient in terms(a):
        quotient = _divide_term(monomial, coefficient, b)
        if quotient is not None:
            divisible[quotient[0]] = divisible.get(quotient[0], 0) + quotient[1]
        else:
            rest[monomial] = coefficient
    quotient_dim, remainder = _build(divisible), _build(rest)
    if remainder == 0:
        return quotient_dim, 0
    if is_nonnegative(remainder) and is_positive(add(b, mul(-1, symbolic_max(remainder)))):
        return quotient_dim, remainder
    monomial, factor = _common_factor(remainder, b)
    if monomial or factor > 1:
        # (a*c) // (b*c) is a // b, and (a*c) % (b*c) is c * (a % b).
        common = _build({monomial: factor})
        reduced = _divmod(_divided(remainder, monomial, factor), _divided(b, monomial, factor))
        return add(quotient_dim, reduced[0]), mul(common, reduced[1])
    apart = _without_carry(remainder, b)
    if apart is not None:
        # (a*c + r) // (b*c) is a // b where r is less than c: rows of whole lines.
        common, high, rest_of_b, low = apart
        reduced = _divmod(high, rest_of_b)
        return add(quotient_dim, reduced[0]), add(mul(common, reduced[1]), low)
    if isinstance(b, Expr) and len(b.terms) > 1:
        shared, rest_of_b = _primitive(b)
        exact = _exact_quotient(remainder, shared)
        if exact is not None:
            # The same with c a sum: ((n + 1)*m) // (2*n + 2) is m // 2.
            reduced = _divmod(exact, rest_of_b)
            return add(quotient_dim, reduced[0]), mul(shared, reduced[1])
    return add(quotient_dim, _atom_div(remainder, b)), _atom_mod(remainder, b)


def _without_carry(a: Dim, b: Dim) -> tuple[Dim, Dim, Dim, Dim] | None:
    """(c, q, d, r) with a = q*c + r, b = d*c and 0 <= r < c; None if no such c is found.

    Of a negative b the quotient is rounded the other way.
    """
    if len(terms(a)) < 2 or not is_nonnegative(b):
        return None
    for each, count in terms(a):
        monomial, factor = _common_factor(_build({each: count}), b)
        common = _build({monomial: factor})
        if common in (1, b):
            continue
        high: dict[Monomial, int] = {}
        low: dict[Monomial, int] = {}
        for m, c in terms(a):
            found = _divide_term(m, c, common)
            if found is None:
                low[m] = c
            else:
                high[found[0]] = found[1]
        rest = _build(low)
        if is_nonnegative(rest) and is_positive(add(common, mul(-1, symbolic_max(rest)))):
            return common, _build(high), _divided(b, monomial, factor), rest
    return None


def _primitive(value: Expr) -> tuple[Dim, Dim]:
    """(p, c) with value = p*c, where c is one term that all of the value's terms have."""
    monomial, factor = _common_factor(value, value)
    return _divided(value, monomial, factor), _build({monomial: factor})


def _exact_quotient(a: Dim, b: Dim) -> Dim | None:
    """q with a = q*b, for a sum b; None if there is none.

    Long division: terms are sorted by degree and then by atoms, and in such an order the first
    term of a product is the product of the first terms.
    """
    quotient: dict[Monomial, int] = {}
    leader = _build(dict(terms(b)[:1]))
    rest = a
    for _ in range(MAX_QUOTIENT):
        if rest == 0:
            return _build(quotient)
        part = _divide_term(*terms(rest)[0], leader)
        if part is None:
            return None
        quotient[part[0]] = part[1]
        rest = add(rest, mul(_build({part[0]: -part[1]}), b))
    return None


def _common_factor(a: Dim, b: Dim) -> tuple[Monomial, int]:
    """The largest product of atoms and a number that divides every term of a and b.

    No atom of it is negative; where one is 0 the division has no value.
    """
    (first, factor), *others = [*terms(a), *terms(b)]
    common = [atom for atom in first if is_nonnegative(atom)]
    for monomial, coefficient in others:
        factor = gcd(factor, coefficient)
        left = list(monomial)
        kept = []
        for atom in common:
            if atom in left:
                left.remove(atom)
                kept.append(atom)
        common = kept
    return tuple(common), abs(factor)


def _divided(value: Dim, monomial: Monomial, factor: int) -> Dim:
    """The value without a factor that every term has."""
    by = _build({monomial: factor})
    parts = (_divide_term(m, c, by) for m, c in terms(value))
    return _build(dict(part for part in parts if part is not None))


def _atom_div(a: Dim, b: Dim) -> Dim:
    if isinstance(a, int) and isinstance(b, int):
        return a // b
    if isinstance(b, int) and b > 0 and isinstance(a, Fn) and a.kind == "floordiv":
        whole, divisor = a.args
        if isinstance(divisor, int):
            return floordiv(whole, divisor * b)
    made = Fn("floordiv", (a, b))
    low, high = made.range()
    return low if low is not None and low == high else made  # -1 // n is -1


def _atom_mod(a: Dim, b: Dim) -> Dim:
    if isinstance(a, int) and isinstance(b, int):
        return a % b
    return Fn("mod", (a, b))


def _divide_term(monomial: Monomial, coefficient: int, b: Dim) -> tuple[Monomial, int] | None:
    """The term divided by b if that is exact, else None. Only single-term b divide."""
    divisor = _terms(b)
    if len(divisor) != 1:
        return None
    ((b_monomial, b_coefficient),) = divisor.items()
    if coefficient % b_coefficient:
        return None
    left = list(monomial)
    for atom in b_monomial:
        if atom not in left:
            return None
        left.remove(atom)
    return tuple(left), coefficient // b_coefficient


def minimum(a: Dim, b: Dim) -> Dim:
    """min(a, b), decided now where the ranges allow it."""
    if isinstance(a, int) and isinstance(b, int):
        return min(a, b)
    if _is_at_most(a, b):
        return a
    return b if _is_at_most(b, a) else Fn("min", (a, b))


def maximum(a: Dim, b: Dim) -> Dim:
    """max(a, b), decided now where the ranges allow it."""
    if isinstance(a, int) and isinstance(b, int):
        return max(a, b)
    if _is_at_most(a, b):
        return b
    return a if _is_at_most(b, a) else Fn("max", (a, b))


def _is_at_most(a: Dim, b: Dim) -> bool:
    """Whether a <= b is certain: min(a, c) is no more than a, and max(b, c) no less than b."""
    if a == b or is_nonnegative(b - a):
        return True
    if isinstance(a, Fn) and a.kind in ("min", "max"):
        found = [_is_at_most(arg, b) for arg in a.args]
        if any(found) if a.kind == "min" else all(found):
            return True
    if isinstance(b, Fn) and b.kind in ("min", "max"):
        found = [_is_at_most(a, arg) for arg in b.args]
        return any(found) if b.kind == "max" else all(found)
    return False


def ceildiv(a: Dim, b: Dim) -> Dim:
    """a / b, rounded up, for a positive b."""
    return floordiv(add(a, add(b, -1)), b)


# ---------------------------------------------------------------- ranges


def bounds(value: Dim) -> tuple[int | None, int | None]:
    """An interval that holds every value; None where there is no bound."""
    if isinstance(value, int):
        return value, value
    known: tuple[int | None, int | None] | None = value.__dict__.get("_bounds")
    if known is None:
        known = value.__dict__["_bounds"] = _bounds(value)
    return known


def _bounds(value: Symbolic) -> tuple[int | None, int | None]:
    low: int | None = 0
    high: int | None = 0
    for monomial, coefficient in terms(value):
        term_low, term_high = _monomial_bounds(monomial)
        if coefficient < 0:
            term_low, term_high = term_high, term_low
        low = None if low is None or term_low is None else low + coefficient * term_low
        high = None if high is None or term_high is None else high + coefficient * term_high
    return low, high


def _monomial_bounds(monomial: Monomial) -> tuple[int | None, int | None]:
    low: float = 1
    high: float = 1
    for atom in monomial:
        a_low, a_high = atom.range()
        ends = (-inf if a_low is None else a_low), (inf if a_high is None else a_high)
        corners = [_times(x, y) for x in (low, high) for y in ends]
        low, high = min(corners), max(corners)
    return _known(low), _known(high)


def _times(x: float, y: float) -> float:
    """x * y for ints and infinities; a value is finite, so 0 times any is 0."""
    if isinstance(x, int) and isinstance(y, int):
        return x * y
    if x == 0 or y == 0:
        return 0
    return inf if (x > 0) == (y > 0) else -inf


def _known(end: float) -> int | None:
    return end if isinstance(end, int) else None


def lower_bound(value: Dim) -> int | None:
    """The least value known, or None."""
    return bounds(value)[0]


def upper_bound(value: Dim) -> int | None:
    """The greatest value known, or None."""
    return bounds(value)[1]


def is_nonnegative(value: Dim) -> bool:
    """Whether value >= 0 is certain."""
    low = lower_bound(symbolic_min(value))
    return low is not None and low >= 0


def is_positive(value: Dim) -> bool:
    """Whether value >= 1 is certain."""
    low = lower_bound(symbolic_min(value))
    return low is not None and low >= 1


def symbolic_max(value: Dim) -> Dim:
    """An upper bound in which loop indices are replaced by their extents."""
    return _extreme(value, largest=True)


def symbolic_min(value: Dim) -> Dim:
    """A lower bound in which loop indices are replaced by their extents."""
    return _extreme(value, largest=False)


@lru_cache(maxsize=65536)
def _extreme(value: Dim, *, largest: bool) -> Dim:
    result: Dim = 0
    for monomial, coefficient in terms(value):
        highest = [_highest(atom) for atom in monomial]
        runs = [h for h in highest if h is not None]
        others = [a for a, h in zip(monomial, highest, strict=True) if h is None]
        term = mul(coefficient, product(others))
        if runs:
            term = _extreme_product(term, product(runs), largest)
        result = add(result, term)
    return result


def _highest(atom: Atom) -> Dim | None:
    """m, of an atom that runs with loop indices from 0 to m; None for other atoms."""
    if isinstance(atom, Index):
        return add(atom.extent, -1)
    if not isinstance(atom, Fn) or atom.kind != "mod":
        return None
    a, b = atom.args
    low = lower_bound(b)
    runs = low is not None and low >= 0 and any(isinstance(x, Index) for x in atoms(a))
    return add(b, -1) if runs else None


def _extreme_product(others: Dim, most: Dim, largest: bool) -> Dim:
    """The largest or smallest value of others * x for x in [0, most]."""
    end = mul(others, most)
    low, high = bounds(others)
    if low is not None and low >= 0:
        return end if largest else 0
    if high is not None and high <= 0:
        return 0 if largest else end
    return maximum(end, 0) if largest else minimum(end, 0)


# ---------------------------------------------------------------- traversal


_NO_ATOMS: frozenset[Variable | Index] = frozenset()


def atoms(value: Dim) -> frozenset[Variable | Index]:
    """All variables and indices in the expression, inside functions too."""
    if isinstance(value, int):
        return _NO_ATOMS
    known: frozenset[Variable | Index] | None = value.__dict__.get("_atoms")
    if known is None:
        known = value.__dict__["_atoms"] = _atoms(value)
    return known


def _atoms(value: Symbolic) -> frozenset[Variable | Index]:
    if isinstance(value, (Variable, Index)):
        return frozenset((value,))
    found: set[Variable | Index] = set()
    for monomial, _ in terms(value):
        for atom in monomial:
            if isinstance(atom, Fn):
                for arg in atom.args:
                    found |= atoms(arg)
            else:
                found.add(atom)
    return frozenset(found)


def divisors(value: Dim) -> tuple[Dim, ...]:
    """All that the expression divides by, inside out."""
    return () if isinstance(value, int) else _divisors(value)


@lru_cache(maxsize=65536)
def _divisors(value: Dim) -> tuple[Dim, ...]:
    found: dict[Dim, None] = {}
    for monomial, _ in terms(value):
        for atom in monomial:
            if isinstance(atom, Fn):
                for argument in atom.args:
                    found.update(dict.fromkeys(divisors(argument)))
                if atom.kind in ("floordiv", "mod"):
                    found[atom.args[1]] = None
    return tuple(found)


def variables(value: Dim) -> tuple[Variable, ...]:
    """The variables of an expression, sorted by name."""
    if isinstance(value, Variable):
        return (value,)
    return tuple(sorted((a for a in atoms(value) if isinstance(a, Variable)), key=lambda v: v.name))


def substitute(value: Dim, replace: Mapping[Any, Dim]) -> Dim:
    """The expression with atoms replaced; re-simplified."""
    return _substitute(value, replace, None)


class Substitution:
    """`substitute` of the same atoms in many expressions, which have parts in common."""

    def __init__(self, replace: Mapping[Any, Dim]) -> None:
        self._replace = {a: d for a, d in replace.items() if a is not d and a != d}
        self._known: dict[Dim, Dim] = {}

    def __call__(self, value: Dim) -> Dim:
        """The expression with the atoms replaced."""
        if not self._replace or isinstance(value, int):
            return value
        found = self._known.get(value)
        if found is None:
            found = self._known[value] = _substitute(value, self._replace, self._known)
        return found


def _substitute(value: Dim, replace: Mapping[Any, Dim], known: dict[Dim, Dim] | None) -> Dim:
    """`known`, if there is one, remembers what became of functions."""
    if isinstance(value, Variable):
        return replace.get(value, value)
    if isinstance(value, int) or atoms(value).isdisjoint(replace):
        return value
    if type(value) is Expr:
        moved = _moved(value, replace)
        if moved is not None:
            return moved
    total: dict[Monomial, int] = {}
    for monomial, old_coefficient in terms(value):
        coefficient = old_coefficient
        new = [_substitute_atom(atom, replace, known) for atom in monomial]
        kept: list[Atom] = []
        for old, now in zip(monomial, new, strict=True):
            if now is old:
                kept.append(old)
            elif isinstance(now, int):  # the rest stays in order
                coefficient *= now
            else:
                for each, count in terms(product(new)):
                    total[each] = total.get(each, 0) + count * old_coefficient
                break
        else:
            rest = tuple(kept)
            total[rest] = total.get(rest, 0) + coefficient
    return _build(total)


def _moved(value: Expr, replace: Mapping[Any, Dim]) -> Dim | None:
    """The sum with numbers for atoms that are terms of their own; None: there is more to do.

    An address in a loop that is unrolled is another number behind the same terms, in their order.
    """
    kept: list[tuple[Monomial, int]] = []
    constant = 0
    for term in value.terms:
        monomial, coefficient = term
        if len(monomial) == 1:
            (atom,) = monomial
            if type(atom) is Fn:
                return None
            number = replace.get(atom)
            if number is None:
                kept.append(term)
            elif type(number) is int:
                constant += coefficient * number
            else:
                return None
        elif not monomial:
            constant += coefficient
        elif any(type(atom) is Fn or atom in replace for atom in monomial):
            return None
        else:
            kept.append(term)
    if constant:
        kept.append(((), constant))
    if len(kept) > 1:
        return Expr(tuple(kept))
    if not kept:
        return 0
    ((monomial, coefficient),) = kept
    if not monomial:
        return coefficient
    return monomial[0] if coefficient == 1 and len(monomial) == 1 else Expr(tuple(kept))


def renamed(value: Dim, names: Mapping[Any, Any], known: dict[Fn, Fn]) -> Dim:
    """`substitute` of other names alone: each atom becomes one of the same range, no two the same.

    Nothing becomes simpler by it, only the order may change. `known` keeps what functions became.
    """
    if isinstance(value, int):
        return value
    if not isinstance(value, Expr):
        return _renamed_atom(value, names, known)
    found = []
    for monomial, coefficient in value.terms:
        new = [_renamed_atom(atom, names, known) for atom in monomial]
        if len(new) > 1:
            new.sort(key=_Arithmetic._key)
        found.append((tuple(new), coefficient))
    return Expr(tuple(sorted(found, key=_term_order)))


def _renamed_atom(atom: Atom, names: Mapping[Any, Any], known: dict[Fn, Fn]) -> Atom:
    if not isinstance(atom, Fn):
        found: Atom = names.get(atom, atom)
        return found
    new = known.get(atom)
    if new is None:
        new = Fn(atom.kind, tuple([renamed(arg, names, known) for arg in atom.args]))
        known[atom] = new
    return new


_FUNCTIONS: dict[str, Callable[[Dim, Dim], Dim]] = {
    "floordiv": floordiv,
    "mod": mod,
    "min": minimum,
    "max": maximum,
}


def _substitute_atom(atom: Atom, replace: Mapping[Any, Dim], known: dict[Dim, Dim] | None) -> Dim:
    if atom in replace:
        return replace[atom]
    if not isinstance(atom, Fn):
        return atom
    found = None if known is None else known.get(atom)
    if found is None:
        args = tuple([_substitute(arg, replace, known) for arg in atom.args])
        found = atom if args == atom.args else _FUNCTIONS[atom.kind](*args)
        if known is not None:
            known[atom] = found
    return found


def evaluate(value: Dim, values: Mapping[Any, int]) -> int:
    """The number, with `values` giving one for each atom (or for its name)."""
    if isinstance(value, int):
        return value
    if isinstance(value, Variable):
        return _evaluate_atom(value, values)
    total = 0
    for monomial, coefficient in terms(value):
        term = coefficient
        for atom in monomial:
            term *= _evaluate_atom(atom, values)
        total += term
    return total


def _evaluate_atom(atom: Atom, values: Mapping[Any, int]) -> int:
    if isinstance(atom, Fn):
        a, b = (evaluate(arg, values) for arg in atom.args)
        return int(_FUNCTIONS[atom.kind](a, b))  # type: ignore[arg-type]
    if atom in values:
        return values[atom]
    return values[atom.name]


def linear_coefficient(value: Dim, index: Index) -> Dim | None:
    """c if value = c*index + (terms without index), else None."""
    coefficient: Dim = 0
    if isinstance(value, int):
        return 0
    for monomial, c in terms(value):
        count = sum(1 for atom in monomial if atom == index)
        inside = any(isinstance(atom, Fn) and index in atoms(atom) for atom in monomial)
        if count > 1 or inside:
            return None
        if count == 1:
            coefficient = add(coefficient, _build({tuple(a for a in monomial if a != index): c}))
    return coefficient


def split(value: Dim, atom: Atom) -> tuple[Dim, Dim]:
    """(q, r) with value = q*atom + r, where r is without `atom` as a factor."""
    with_it: dict[Monomial, int] = {}
    without: dict[Monomial, int] = {}
    for monomial, coefficient in terms(value):
        if atom in monomial:
            at = monomial.index(atom)
            with_it[monomial[:at] + monomial[at + 1 :]] = coefficient
        else:
            without[monomial] = coefficient
    return _build(with_it), _build(without)


def terms(value: Dim) -> tuple[tuple[Monomial, int], ...]:
    """The monomials and coefficients; none of 0."""
    if isinstance(value, Expr):
        return value.terms
    if isinstance(value, (Variable, Index, Fn)):
        return (((value,), 1),)
    number = _number(value)
    return (((), number),) if number else ()
