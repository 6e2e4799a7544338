"""Hand-written kernels for the tests of the run side: LLVM IR, compiled once per process."""

from __future__ import annotations

from functools import cache

from semel.devices.cpu.elf import LoadedCode, load_object
from semel.devices.cpu.toolchain import compile_ir, host_target
from semel.ir.expr import Dim, Variable, ceildiv
from semel.ir.signature import BufferSpec, CheckInfo, KernelSignature
from semel.ir.types import FLOAT32, INT64
from semel.runtime.kernel import CachedKernel

TILE = 1024  #: elements per tile of the kernels below

# Each kernel works on tiles of TILE elements, cut at the number of elements in vals[0].
_LOOP = """
define void @{name}(ptr %lane, ptr %buffers, ptr %vals, i64 %tb, i64 %te) {{
entry:
  %n = load i64, ptr %vals, align 8
  %begin = mul i64 %tb, {tile}
  %end0 = mul i64 %te, {tile}
  %over = icmp sgt i64 %end0, %n
  %end = select i1 %over, i64 %n, i64 %end0
  %p0 = load ptr, ptr %buffers, align 8
  %q1 = getelementptr ptr, ptr %buffers, i64 1
  %p1 = load ptr, ptr %q1, align 8
  {third}
  br label %head
head:
  %i = phi i64 [ %begin, %entry ], [ %i1, %next ]
  %more = icmp slt i64 %i, %end
  br i1 %more, label %body, label %exit
body:
{body}
  br label %next
next:
  %i1 = add i64 %i, 1
  br label %head
exit:
  ret void
}}
"""
_THIRD = "%q2 = getelementptr ptr, ptr %buffers, i64 2\n  %p2 = load ptr, ptr %q2, align 8"
_BINARY = """
  %a_at = getelementptr float, ptr %p0, i64 %i
  %a = load float, ptr %a_at, align 4
  %b_at = getelementptr float, ptr %p1, i64 %i
  %b = load float, ptr %b_at, align 4
  %r = {op} float %a, %b
  %o_at = getelementptr float, ptr %p2, i64 %i
  store float %r, ptr %o_at, align 4"""
_UNARY = """
  %a_at = getelementptr float, ptr %p0, i64 %i
  %a = load float, ptr %a_at, align 4
  %r = {op} float %a, {constant}
  %o_at = getelementptr float, ptr %p1, i64 %i
  store float %r, ptr %o_at, align 4"""
# out[i] = in[n - 1 - i]: any tile may read any element.
_REVERSE = """
  %m1 = sub i64 %n, 1
  %from = sub i64 %m1, %i
  %a_at = getelementptr float, ptr %p0, i64 %from
  %a = load float, ptr %a_at, align 4
  %o_at = getelementptr float, ptr %p1, i64 %i
  store float %a, ptr %o_at, align 4"""
# Checks that every int64 of the input lies in [0, 10) and copies it to the output.
_CHECK = """
  %a_at = getelementptr i64, ptr %p0, i64 %i
  %a = load i64, ptr %a_at, align 8
  %o_at = getelementptr i64, ptr %p1, i64 %i
  store i64 %a, ptr %o_at, align 8
  %bad = icmp uge i64 %a, 10
  br i1 %bad, label %report, label %next
report:
  %code_at = getelementptr i64, ptr %lane, i64 3
  %code = load i64, ptr %code_at, align 8
  %clean = icmp eq i64 %code, 0
  br i1 %clean, label %write, label %next
write:
  store i64 1, ptr %code_at, align 8
  %row_at = getelementptr i64, ptr %lane, i64 2
  %row = load i64, ptr %row_at, align 8
  %srow_at = getelementptr i64, ptr %lane, i64 4
  store i64 %row, ptr %srow_at, align 8
  %value_at = getelementptr i64, ptr %lane, i64 5
  store i64 %a, ptr %value_at, align 8"""
# Burns a fixed number of iterations per element without touching much memory.
_SLOW = """
  br label %spin
spin:
  %k = phi i64 [ 0, %body ], [ %k1, %spin ]
  call void asm sideeffect "", ""()
  %k1 = add i64 %k, 1
  %again = icmp slt i64 %k1, 1000
  br i1 %again, label %spin, label %stored
stored:
  %a_at = getelementptr float, ptr %p0, i64 %i
  %a = load float, ptr %a_at, align 4
  %o_at = getelementptr float, ptr %p1, i64 %i
  %r = fadd float %a, 1.0
  store float %r, ptr %o_at, align 4"""
# As slow; out[i] = index of the participant that computed it.
_WHO = (
    _SLOW[: _SLOW.index("  %a_at")]
    + """  %who = load i64, ptr %lane, align 8
  %r = sitofp i64 %who to float
  %o_at = getelementptr float, ptr %p1, i64 %i
  store float %r, ptr %o_at, align 4"""
)

_BODIES = {
    "add": (_BINARY.format(op="fadd"), 3, FLOAT32),
    "mul": (_BINARY.format(op="fmul"), 3, FLOAT32),
    "double": (_UNARY.format(op="fmul", constant="2.0"), 2, FLOAT32),
    "increment": (_UNARY.format(op="fadd", constant="1.0"), 2, FLOAT32),
    "reverse": (_REVERSE, 2, FLOAT32),
    "check": (_CHECK, 2, INT64),
    "slow": (_SLOW, 2, FLOAT32),
    "who": (_WHO, 2, FLOAT32),
}


@cache
def _code() -> LoadedCode:
    text = ""
    for name, (body, arity, _) in _BODIES.items():
        third = _THIRD if arity == 3 else ""
        text += _LOOP.format(name=name, tile=TILE, third=third, body=body)
    # `check` and `slow` have blocks of their own before %next: the loop's phi is on %next only.
    return load_object(compile_ir(text, host_target()))


def kernel(name: str, variable: Variable, *, bytes_per_element: int = 12) -> CachedKernel:
    """One of the kernels above over `variable` elements; a fixed size is `fixedvars`."""
    _, arity, dtype = _BODIES[name]
    stride: Dim | None = None if name == "reverse" else TILE
    specs = [BufferSpec(f"in{i}", dtype, "r", variable, stride) for i in range(arity - 1)]
    specs.append(BufferSpec("out", dtype, "w", variable, TILE))
    signature = KernelSignature(
        name,
        tuple(specs),
        (variable,),
        ceildiv(variable, TILE),
        checks=(CheckInfo("gather", "index", 10),) if name == "check" else (),
        flops=variable * (50_000 if name in ("slow", "who") else 1),
        bytes=variable * bytes_per_element,
    )
    return CachedKernel(signature, _code().address(name), name, owner=_code())
