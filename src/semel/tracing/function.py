"""`semel.jit`: a function of tensors that is prepared once per form and called often.

    @semel.jit
    def f(x, w): return (x @ w).relu()

    f(a, b)  -->  a Tensor that has its value;  f.compile_count, f.forms, f.plan

A call that is like the last one but for its numbers is compared with that and run. Any other goes
the long way: its arguments become a tree of leaves, and the first form that fits is its own; if
none does, the function is followed (trace.py) and prepared. A form counts once it is ready: a call
that fails leaves nothing.

One idea: the life of one traced function, from its decoration over its forms to the call that is
like the last one.
"""

from __future__ import annotations

import functools
import inspect
import typing
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from typing import Any, Generic, TypeVar, overload

import numpy as np

from semel.errors import GraphError, InputError, RecompileError, UserError
from semel.ir import questions
from semel.ir.expr import Dim, Variable
from semel.ir.fields import take, take_int, take_switch, take_threads
from semel.ir.graph import Graph, Storage, is_tracing, topological
from semel.ir.types import TensorType, is_known
from semel.locks import importing, make_lock
from semel.runtime.buffer import as_array_of, read_arrays
from semel.runtime.interop import check_unmasked, read_array
from semel.tensor.donate import give_away, own_array
from semel.tensor.handle import SYMBOLIC
from semel.tensor.realize import value_of
from semel.tensor.spelling import SameAs
from semel.tensor.tensor import Tensor
from semel.topics import Topic
from semel.tracing.form import CallForm, Form, difference
from semel.tracing.runs import At, Runs
from semel.tracing.trace import Options, follow
from semel.tracing.trees import LEAF, Leaves, Static, check_static, flatten

R = TypeVar("R")
#: Forms of one function, if nobody says otherwise: more are a mistake that is better told.
MAX_FORMS = 32
_COMPILE = Topic("compile")


class _Like:
    """The last call: what the arguments of one like it are, and how that is run."""

    __slots__ = ("at", "checks", "inputs", "is_plain", "runs")

    def __init__(
        self, checks: list[tuple[Any, Any]], inputs: list[int], runs: Runs, at: At
    ) -> None:
        self.checks, self.inputs, self.runs, self.at = checks, inputs, runs, at
        self.is_plain = inputs == list(range(len(checks)))


#: In the place of a dtype, for an argument that must be as it was, and for any float.
_SAME, _FLOAT = "same", "float"


class Jit(Generic[R]):
    """A function of tensors that is compiled for each form of its arguments.

    Made by `semel.jit`. `forms` are what it was compiled for, `compile_count` how many those are,
    and `plan` is what the last call ran.
    """

    def __init__(
        self,
        function: Callable[..., R],
        *,
        dims: Mapping[str, Any] | None = None,
        static: Iterable[str] = (),
        donate: Iterable[str] = (),
        max_forms: int = MAX_FORMS,
        threads: int | None = None,
        device: Any = None,
        keep_params: bool = False,
        owner: Any = None,
    ) -> None:
        self._function, self._owner = function, owner
        self._name = getattr(function, "__name__", type(function).__name__)
        self._signature = _signature(function, self._name)
        if owner is not None:
            self._signature = _without_first(self._signature)
        self._fills_in = _may_fill_in(function, self._signature)
        self._settings: dict[str, Any] = {
            "dims": dims, "static": static, "donate": donate, "max_forms": max_forms,
            "threads": threads, "device": device, "keep_params": keep_params,
        }  # fmt: skip
        self._static = _names_of(static, self._signature, self._name, "static")
        self._donate = _names_of(donate, self._signature, self._name, "donate")
        self._dims = _declared(dims, function, self._signature, self._name)
        self._max_forms = take_int("jit", "max_forms", max_forms)
        self._threads, self._device = take_threads("jit", threads), device
        self._keep_params = bool(take_switch("jit", "keep_params", keep_params))
        self._options = Options(self._name, {})
        self._forms: dict[Any, list[tuple[Form, Runs]]] = {}
        self._order: list[Form] = []
        #: What params were replaced by, for forms to come; another mapping after each change.
        self._params: Mapping[str, Storage] = {}
        self._lock = make_lock()
        self._like: _Like | None = None
        self._last: Form | None = None
        self._bound: dict[int, tuple[Any, Jit[Any]]] = {}
        functools.update_wrapper(self, function)

    def __repr__(self) -> str:
        count = len(self._order)
        return f"<jit {self._name}{self._signature}, {count} form{'s' * (count != 1)}>"

    def __reduce__(self) -> str:
        """By its name, as functions are pickled: a decorated one of a module."""
        return str(getattr(self, "__qualname__", self._name))

    # ------------------------------------------------------------ what it is

    @property
    def forms(self) -> tuple[Form, ...]:
        """What it was prepared for, in order; `str(form)` says what its arguments are."""
        return tuple(self._order)

    @property
    def compile_count(self) -> int:
        """How often a form was prepared."""
        return len(self._order)

    @property
    def plan(self) -> Any:
        """The plan of the last call; before the first one there is none."""
        if self._last is None or self._last.plan is None:
            raise GraphError(
                self._name,
                "has no plan yet."
                if self._last is None
                else "computes no tensor: there is no plan.",
                hint=f"Call it, or {self._name}.prepare(...) with arguments of the form you want.",
            )
        return self._last.plan

    def plan_for(self, *args: Any, **kwargs: Any) -> Any:
        """The plan that a call with these arguments would run; None if it is yet to be prepared."""
        call = self._call_form(args, kwargs)
        found = None if call is None else self._find(call)
        return None if found is None else found[0].plan

    def prepare(self, *args: Any, **kwargs: Any) -> Any:
        """Prepare the form of these arguments, without a run; its plan."""
        call = self._call_form(args, kwargs)
        if call is None:
            raise GraphError(self._name, "prepare needs arguments that have values.")
        form, _, _ = self._find(call) or self._make(call)
        self._last = form
        return form.plan

    # ------------------------------------------------------------ params

    def set_param(self, name: str, array: Any) -> None:
        """Replace a param by a copy of `array` in all forms, those that are yet to come too."""
        self.set_params({take("set_param", "name", str, name): array})

    def set_params(self, arrays: Mapping[str, Any]) -> None:
        """Replace several params at once, in all forms or in none.

        The tensors that the function reads them from stay as they are. The data is held, for forms
        to come.
        """
        with importing:
            from semel.plan.several import set_params_of_all
        given = read_arrays("set_params", arrays)
        with self._lock:
            plans = [form.plan for form in self._order if form.plan is not None]
            known = {p.name: p.type for plan in plans for p in plan.program.params}
            new = {name: self._checked(name, data, known) for name, data in given.items()}
            set_params_of_all(plans, new)
            self._params = {**self._params, **new}

    def _checked(self, name: str, data: Any, known: Mapping[str, TensorType]) -> Storage:
        if name not in known:
            shown = ", ".join(known) or "none"
            raise InputError(
                self._name,
                f"has no param '{name}' in the forms that there are; known: {shown}.",
                hint=f"Call it, or {self._name}.prepare(...), before." if not known else "",
                name=name,
            )
        kind = known[name]
        return Storage(np.array(as_array_of(data, kind.dtype, kind.shape, f"param '{name}'")))

    # ------------------------------------------------------------ calls

    def __call__(self, /, *args: Any, **kwargs: Any) -> R:
        like = self._like
        if like is not None and not kwargs and len(args) == len(like.checks):
            arrays: list[Any] = []
            ndarray = np.ndarray
            for arg, (kind, wanted) in zip(args, like.checks):  # noqa: B905  (0.2 us more)
                array: Any = arg
                if type(arg) is Tensor:
                    storage = arg._value
                    if storage is None:
                        break
                    array = storage.array
                elif type(arg) is not ndarray:
                    if kind is _FLOAT and type(arg) is float:
                        arrays.append(np.array(arg))
                        continue
                    if kind is _SAME and type(arg) is type(wanted) and arg == wanted:
                        arrays.append(np.array(arg) if type(arg) is float else None)
                        continue
                    break
                if array.shape != wanted or (array.dtype is not kind and array.dtype != kind):
                    break
                arrays.append(array)
            else:
                if not questions.num_open:
                    if not like.is_plain:
                        arrays = [arrays[i] for i in like.inputs]
                    return like.runs.run(arrays, like.at)  # type: ignore[no-any-return]
        return self._call(args, kwargs)

    def _call(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], donated: list[Any] | None = None
    ) -> R:
        if self._donate and donated is None and questions.answers() is None:
            return self._call_donated(args, kwargs)
        call = self._call_form(args, kwargs)
        if call is None:
            return self._invoke_plain(args, kwargs)
        form, runs, values = self._find(call) or self._make(call)
        at, leaves = runs.at(values), call.leaves
        arrays = [_as_input(leaves[i][1]) for i in form.inputs if i >= 0]
        self._last = form
        if self._donate:
            return runs.run(arrays, at, donated or ())  # type: ignore[no-any-return]
        result = runs.run(arrays, at)
        self._like = None if kwargs else self._like_this(args, call, form, runs, at)
        return result  # type: ignore[no-any-return]

    def _call_donated(self, args: Any, kwargs: Any) -> R:
        """A call that may write to some of its arguments; their tensors are given away."""
        leaves: Leaves = []
        bound = self._signature.bind(*args, **kwargs).arguments
        for name in self._donate & bound.keys():
            flatten(bound[name], name, leaves, _is_leaf)
        donated = [own_array(value) for _, value in leaves if isinstance(value, Tensor)]
        # Views, so that the caller's array stays one that can be written to.
        donated += [value.view() for _, value in leaves if _is_writable(value)]
        result = self._call(args, kwargs, [array for array in donated if array is not None])
        for path, value in leaves:
            if isinstance(value, Tensor):
                give_away(value, path, self._name)
        return result

    def _invoke_plain(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> R:
        """The function itself, as part of what is traced or written around it."""
        if self._owner is not None:
            return self._function(self._alive_owner(), *args, **kwargs)
        return self._function(*args, **kwargs)

    def _alive_owner(self) -> Any:
        owner = self._owner()
        if owner is None:
            raise GraphError(self._name, "the object that it is a method of is gone.")
        return owner

    def _invoke(self, function: Callable[..., Any], arguments: dict[str, Any]) -> Any:
        """The function with the arguments of a rebuilt tree."""
        bound = inspect.BoundArguments(self._signature, OrderedDict(arguments))
        first = () if self._owner is None else (self._alive_owner(),)
        return function(*first, *bound.args, **bound.kwargs)

    def _like_this(
        self, args: tuple[Any, ...], call: CallForm, form: Form, runs: Runs, at: At
    ) -> _Like | None:
        """The short way for the next call, if the arguments are no trees."""
        parameters = call.spec[2]
        known = self._signature.parameters
        is_short = self._fills_in and len(parameters) != len(known)
        if is_short or len(args) > len(parameters):
            return None
        kinds = {known[name].kind for name in parameters}
        if kinds - {inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD}:
            return None
        named = dict(zip(parameters, call.spec[3], strict=True))
        place, checks, leaf = {}, [], 0
        for name in parameters:
            if named[name] == LEAF:
                place[name] = leaf
                leaf += 1
            elif named[name][0] != "static":
                return None
        order = list(known)[: len(args)]
        for name, arg in zip(order, args, strict=True):
            if name not in place:
                checks.append((_SAME, arg))
                continue
            _, value = call.leaves[place[name]]
            if isinstance(value, np.ndarray):
                checks.append((value.dtype, value.shape))
            else:
                is_free = type(value) is float and form.leaves[place[name]].fixed is None
                checks.append((_FLOAT, None) if is_free and not form.questions else (_SAME, arg))
        at_place = {p: order.index(n) for n, p in place.items() if n in order}
        wanted = [i for i in form.inputs if i >= 0]
        if any(i not in at_place for i in wanted):
            return None
        inputs = [at_place[i] for i in wanted]
        return _Like(checks, inputs, runs, at)

    # ------------------------------------------------------------ forms

    def _call_form(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> CallForm | None:
        """The tree of a call; None if it is part of what is traced or written around it."""
        if questions.answers() is not None or is_tracing():
            return None
        try:
            bound = self._signature.bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(f"{self._name}() {error}") from None
        if self._fills_in:
            bound.apply_defaults()
        leaves: Leaves = []
        parts = []
        names = tuple(bound.arguments)
        for name in names:
            value = bound.arguments[name]
            if name in self._static:
                part: Any = ("static", Static(value))
            else:
                part = flatten(value, name, leaves, _is_leaf)
            check_static(part, self._name, name)
            parts.append(part)
        if any(_is_open(value) for _, value in leaves):
            return None
        taken = [(path, _taken(value, path, self._name)) for path, value in leaves]
        self._check_declared(taken)
        return CallForm(("dict", dict, names, tuple(parts)), taken)

    def _check_declared(self, leaves: Leaves) -> None:
        """Refuse arrays that are not what `dims` says."""
        for path, value in leaves:
            dims = self._dims.get(path)
            if dims is None or not isinstance(value, np.ndarray):
                continue
            shown = ", ".join("*" if d is None else str(d) for d in dims)
            fits = len(dims) == value.ndim and all(
                d is None or _allows(d, size) for d, size in zip(dims, value.shape, strict=True)
            )
            if not fits:
                raise InputError(
                    self._name,
                    f"argument '{path}' must have the shape [{shown}], got {list(value.shape)}.",
                )
        self._check_named(leaves)

    def _check_named(self, leaves: Leaves) -> None:
        found: dict[str, tuple[int, str]] = {}
        for path, value in leaves:
            for dim, size in zip(
                self._dims.get(path, ()), getattr(value, "shape", ()), strict=False
            ):
                if isinstance(dim, Variable):
                    before, where = found.setdefault(dim.name, (size, path))
                    if before != size:
                        raise InputError(
                            self._name,
                            f"'{dim.name}' must be one size, got {before} in '{where}' and {size} "
                            f"in '{path}'.",
                        )

    def _find(self, call: CallForm) -> tuple[Form, Runs, dict[str, Any]] | None:
        for form, runs in self._forms.get(call.key, ()):
            values = form.match(call.leaves)
            if values is not None:
                return form, runs, values
        return None

    def _make(self, call: CallForm) -> tuple[Form, Runs, dict[str, Any]]:
        """Follow the function through this call, and prepare what it does."""
        with importing:
            from semel.compiler.graph_source import fill_params
            from semel.compiler.pipeline import prepare_graph
        reason = self._reason(call)
        if len(self._order) >= self._max_forms:
            raise RecompileError(
                self._name,
                f"has {len(self._order)} forms, and max_forms={self._max_forms}: {reason}.",
                hint="Look at .forms for what keeps changing: pass it as an array, name its dims, "
                "or allow more forms.",
            )
        options = Options(self._name, self._dims)
        params = self._params

        def prepare(graph: Graph) -> Any:
            filled = fill_params(graph, params) if params else graph
            return prepare_graph(
                filled,
                threads=self._threads,
                device=self._device,
                keep_params=self._keep_params,
                name=self._name,
            )

        try:
            form = follow(self._function, call, self._invoke, options, prepare)
        except RecompileError:
            raise RecompileError(
                self._name,
                f"would be compiled inside no_recompiles(): {reason}.",
                hint="Call it that way before, or prepare() it.",
            ) from None
        values = form.match(call.leaves)
        assert values is not None, str(form)
        found = self._keep(call, form, values, reason, params)
        return self._make(call) if found is None else found

    def _keep(
        self,
        call: CallForm,
        form: Form,
        values: dict[str, Any],
        reason: str,
        params: Mapping[str, Storage],
    ) -> tuple[Form, Runs, dict[str, Any]] | None:
        """The form, or that of another thread; None if `params` are not those of now."""
        made = Runs(form)
        with self._lock:
            found = self._find(call)  # another thread may have been faster
            if found is not None:
                return found
            if params is not self._params:
                return None
            self._forms.setdefault(call.key, []).append((form, made))
            self._order.append(form)
        _COMPILE("jit %s: form %d, %s: %s", self._name, len(self._order), form, reason)
        return form, made, values

    def _reason(self, call: CallForm) -> str:
        """Why no form fits: what is other than in the form that is nearest, the latest one."""
        if not self._order:
            return "it was never called"
        family = self._forms.get(call.key)
        return difference(family[-1][0] if family else self._order[-1], call)

    # ------------------------------------------------------------ methods

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        """The function of one object: each has forms of its own, which go when it goes."""
        if instance is None:
            return self
        key = id(instance)
        known = self._bound.get(key)
        if known is not None and known[0]() is instance:
            return _Method(known[1], instance)
        bound = self._bound
        try:
            reference = weakref.ref(instance, lambda _: bound.pop(key, None))
        except TypeError:
            raise GraphError(
                self._name,
                f"a method that is jitted needs objects that can be weakly referenced, got a "
                f"{type(instance).__name__}.",
                hint="Add __weakref__ to its __slots__.",
            ) from None
        made: Jit[Any] = Jit(self._function, **self._settings, owner=reference)
        bound[key] = reference, made
        return _Method(made, instance)


class _Method:
    """A jitted function together with its object, which it keeps alive."""

    __slots__ = ("__self__", "_jit")

    def __init__(self, jit: Jit[Any], instance: Any) -> None:
        self._jit, self.__self__ = jit, instance

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        return self._jit(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._jit, name)

    def __reduce__(self) -> Any:
        return getattr, (self.__self__, self._jit._name)

    def __repr__(self) -> str:
        return repr(self._jit)


@overload
def jit(function: Callable[..., R], /) -> Jit[R]: ...
@overload
def jit(
    *,
    dims: Mapping[str, Any] | None = None,
    static: Iterable[str] = (),
    donate: Iterable[str] = (),
    max_forms: int = MAX_FORMS,
    threads: int | None = None,
    device: Any = None,
    keep_params: bool = False,
) -> Callable[[Callable[..., R]], Jit[R]]: ...
def jit(function: Any = None, /, **options: Any) -> Any:
    """Prepare a function of tensors once per form of its arguments, and run it often.

    >>> @semel.jit
    ... def f(x, w):
    ...     return (x @ w).relu()
    >>> f(np.ones((2, 3), np.float32), np.ones((3, 4), np.float32)).shape
    (2, 4)

    Arguments are arrays and tensors, floats and ints, and dicts, lists, tuples and dataclasses of
    these; the results are tensors that have their values, in the same kinds of trees. Sizes are
    variables, and so are floats and ints: other sizes and other numbers compile nothing. Everything
    else is static: another value is another form. So are the arguments named in `static`.

    `dims` says more of an array: `{"x": ("n", 384)}` names the first axis and fixes the second,
    None says nothing; `Annotated[Tensor, ("n", 384)]` says the same. The arrays in `donate` may be
    written to, and must not be used after the call. More than `max_forms` forms are a
    `RecompileError`, which says what changed. `threads`, `device` and `keep_params` are those of
    `semel.prepare`.
    """
    if function is None:
        return functools.partial(_jit, options)
    return _jit(options, function)


def _jit(options: dict[str, Any], function: Any) -> Jit[Any]:
    if isinstance(function, (staticmethod, classmethod)) or not callable(function):
        kind = type(function).__name__
        raise GraphError(
            "jit", f"needs a function, got {kind}.", hint="Write it below @staticmethod."
        )
    return Jit(function, **options)


# ------------------------------------------------------------ what was said of arguments


def _signature(function: Any, name: str) -> inspect.Signature:
    try:
        return inspect.signature(function)
    except (TypeError, ValueError):
        raise GraphError(
            "jit", f"needs a function whose arguments are known, got {name}.", hint="Use a lambda."
        ) from None


def _may_fill_in(function: Any, signature: inspect.Signature) -> bool:
    """Whether a call that leaves arguments out is one with their defaults.

    A second name stands for the first only where nobody wrote it, and NumPy's ufuncs do not hand
    on to tensors what stands in their signatures.
    """
    given = (parameter.default for parameter in signature.parameters.values())
    return not isinstance(function, np.ufunc) and not any(isinstance(d, SameAs) for d in given)


def _without_first(signature: inspect.Signature) -> inspect.Signature:
    return signature.replace(parameters=list(signature.parameters.values())[1:])


def _names_of(given: Any, signature: inspect.Signature, name: str, what: str) -> frozenset[str]:
    if not isinstance(given, Iterable):
        raise GraphError("jit", f"{what} must be names of arguments, got {given!r}.")
    names = (given,) if isinstance(given, str) else tuple(given)
    for each in names:
        _check_argument(each, signature, name, what)
    return frozenset(names)


def _check_argument(given: Any, signature: inspect.Signature, name: str, what: str) -> None:
    known = list(signature.parameters)
    if given in known:
        return
    near = get_close_matches(str(given), known, 1)
    hint = f"Did you mean '{near[0]}'?" if near else ""
    found = f"'{given}'" if isinstance(given, str) else repr(given)
    raise GraphError(
        "jit", f"{what} names arguments of {name}({', '.join(known)}), got {found}.", hint=hint
    )


def _declared(
    dims: Any, function: Any, signature: inspect.Signature, name: str
) -> dict[str, tuple[Dim | None, ...]]:
    """The dims of arrays by their paths: what annotations say, and over it `dims`."""
    found: dict[str, tuple[Dim | None, ...]] = {}
    try:
        hints = typing.get_type_hints(function, include_extras=True)
    except Exception:  # annotations may name what is not there when it runs
        hints = {}
    for argument in signature.parameters:
        for said in getattr(hints.get(argument), "__metadata__", ()):
            if isinstance(said, tuple):
                found[argument] = tuple(_take_dim(d, argument) for d in said)
    if dims is not None and not isinstance(dims, Mapping):
        raise GraphError(
            "jit", f"dims must be a dict of shapes, got {dims!r}.", hint='Write {"x": ("n", 384)}.'
        )
    for path, given in (dims or {}).items():
        base = path.partition("[")[0].partition(".")[0] if isinstance(path, str) else path
        _check_argument(base, signature, name, "dims")
        is_one = isinstance(given, (str, int, Variable)) or given is None
        found[path] = tuple(_take_dim(d, path) for d in ((given,) if is_one else given))
    _check_ranges(found)
    return found


def _check_ranges(dims: Mapping[str, tuple[Dim | None, ...]]) -> None:
    """A name is one size: of two sizes with one name, one range is meant."""
    known: dict[str, Variable] = {}
    for said in dims.values():
        for dim in said:
            if isinstance(dim, Variable) and known.setdefault(dim.name, dim) != dim:
                first = known[dim.name]
                raise GraphError(
                    "jit",
                    f"'{dim.name}' must have one range, got [{first.min}, {first.max}] and "
                    f"[{dim.min}, {dim.max}].",
                )


def _take_dim(dim: Any, path: str) -> Dim | None:
    if dim is None or isinstance(dim, Variable):
        return dim
    if isinstance(dim, str) and dim.isidentifier():
        return Variable(dim, 1)
    if isinstance(dim, int) and not isinstance(dim, bool) and dim >= 0:
        return dim
    raise GraphError(
        "jit", f"dims of '{path}' must be names, ints, Variables or None, got {dim!r}."
    )


def _allows(dim: Dim, size: int) -> bool:
    if isinstance(dim, Variable):
        return size >= dim.min and (dim.max is None or size <= dim.max)
    return dim == size


# ------------------------------------------------------------ leaves


def _is_leaf(value: Any) -> bool:
    """Whether an argument is an array or a number that may change from call to call."""
    if isinstance(value, (Tensor, np.ndarray, *SYMBOLIC)) or type(value) in (int, float):
        return True
    if isinstance(value, np.generic):
        return not isinstance(value, np.bool_) and value.dtype.kind in "iufV"
    if isinstance(value, type):
        return False
    return hasattr(value, "__dlpack__") or hasattr(value, "__array__")


def _is_open(value: Any) -> bool:
    """Whether a tensor depends on inputs or variables: the function is part of that graph."""
    if isinstance(value, SYMBOLIC):
        return True
    if not isinstance(value, Tensor) or value._value is not None:
        return False
    nodes = topological((value.node,))
    return any(
        n.op.name in ("input", "state") or n.rule.variables - set(n.rule.late) for n in nodes
    )


def _taken(value: Any, path: str, where: str) -> Any:
    """A leaf as an array, a float or an int."""
    if isinstance(value, Tensor):
        return value_of(value, where)
    if type(value) in (int, float):
        return value
    if isinstance(value, np.generic):
        return int(value) if value.dtype.kind in "iu" else float(value)
    if type(value) is np.ndarray and is_known(value.dtype):
        return value

    def wrong(sentence: str) -> UserError:
        return InputError(where, f"argument '{path}' {sentence}")

    if isinstance(value, np.ndarray):
        check_unmasked(value, wrong)
    array = np.asarray(read_array(value, wrong))
    array = array.astype(array.dtype.newbyteorder("="), copy=False)
    if not is_known(array.dtype):
        raise wrong(f"must be an array of numbers, got dtype {array.dtype}.")
    return array


def _is_writable(value: Any) -> bool:
    """Whether results may be written to an array that was donated."""
    if type(value) is not np.ndarray:
        return False
    flags = value.flags
    return bool(flags.writeable and flags.c_contiguous and flags.aligned)


def _as_input(value: Any) -> Any:
    return np.array(value) if type(value) is float else value
