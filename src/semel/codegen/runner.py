"""The native plan runner and the worker loop, as LLVM IR.

    emit_runner(arch)  -->  LLVM IR text: entries, run, rebind, walk, recruit, worker

`i64 @entry_k()` runs the plan whose header lies in `@slots[k]`: a call without arguments is
the cheapest that ctypes has. A run rebinds if variables changed, then walks the steps. A
step that is worth it is published in one word, `step << 32 | next chunk`; participants take
chunks by moving that word forward. The step tables do not change during a run, so that
whoever moves the word owns a chunk of exactly the step it names, however late it comes. If
nobody comes, the caller does everything: nothing here can deadlock.

Invariants: a worker touches a plan's memory only between accepting a lane (mailbox = lane | 1)
and clearing that lane's TAKEN; a run ends after every lane is back. Every wait spins for a
bounded time, then blocks on a futex. Kernels run in the default floating-point mode whatever
the caller's is, and of several failed checks the lowest (row, tile) is reported: so neither
bits nor errors depend on who ran what.

A profiled run takes a second set of the same functions, derived from their text: there the
call of a row reads the clock and writes an event (`_timed`). The first set knows nothing
of it and pays nothing for it.

The text is LLVM IR with two short forms for the words of `semel.ir.abi`:
`%x = word %h.Header.BUSY` (also `pointer`, `at`) and `set %h.Header.BUSY = %x`.
"""

from __future__ import annotations

import re
from enum import IntEnum
from types import MappingProxyType

from semel.errors import UnsupportedError
from semel.ir import abi

_RECORDS: MappingProxyType[str, type[IntEnum]] = MappingProxyType(
    {
        e.__name__: e
        for e in (abi.Event, abi.Header, abi.Lane, abi.Row, abi.Segment, abi.Step, abi.Worker)
    }
)
_READ = re.compile(r"^\s*(%\w+) = (word|pointer|at) (%\w+)\.(\w+)\.(\w+)$")
_WRITE = re.compile(r"^\s*set (%\w+)\.(\w+)\.(\w+) = (\S+)$")


def emit_runner(arch: str) -> str:
    """The whole module for one architecture; deterministic."""
    if arch not in _MACHINE:
        raise UnsupportedError("runner", f"architecture must be x86_64 or aarch64, got {arch}.")
    names = {f"@{kind.__name__}.{m.name}": str(int(m)) for kind in _CONSTANTS for m in kind}
    names |= {
        "@LANE_BYTES": str(abi.LANE_WORDS * abi.WORD_BYTES),
        "@EVENT_WORDS": str(abi.EVENT_WORDS),
        "@WORKER_BYTES": str(abi.WORKER_WORDS * abi.WORD_BYTES),
        "@LARGE_NS": str(abi.LARGE_NS),
        "@WAKE_NS": str(abi.WAKE_NS),
        "@NO_CLAIM": str(abi.NO_CLAIM),
        "@STOP": str(abi.STOP),
        "@MASK_BYTES": str(abi.MASK_WORDS * abi.WORD_BYTES),
        "@MASK_BITS": str(abi.MASK_WORDS * 64),
    }
    names |= {f"@SYS_{name}": str(number) for name, number in _SYSTEM_CALLS[arch].items()}
    walking = "\n".join((_WALK, _SHARE, _RUN, _WORKER))
    text = "\n".join(
        (_MACHINE[arch], _SYSTEM, _REBIND, _BIND, _CHUNKS, walking, _EVENTS, _timed(walking))
    )
    text = re.sub(r"@[A-Z]\w*(?:\.\w+)?", lambda m: names[m.group()], text)
    # Without `nounwind` every function would carry an unwind table that nobody reads.
    return re.sub(r"(?m)^(define .*) \{$", r"\1 nounwind {", _expand(text) + _entries())


_CONSTANTS = (abi.Code, abi.RowKind, abi.Opcode)


def _timed(text: str) -> str:
    """Every function on the way from a run to the call of a row, once more, with events."""
    functions = {
        name: body
        for body, name in re.findall(r"(?ms)^(define internal [^\n]*?@(\w+)\(.*?^}\n)", text)
    }
    found = {"call_row"}
    while callers := {
        name
        for name, body in functions.items()
        if name not in found and any(f" @{callee}(" in body for callee in found)
    }:
        found |= callers
    bodies = [functions[name] for name in functions if name in found - {"call_row"}]
    copies = re.sub(rf"@({'|'.join(sorted(found))})\(", r"@\1_timed(", "\n".join(bodies))
    return copies.replace("define internal i64 @run_timed(", "define dso_local i64 @run_timed(")


def _expand(text: str) -> str:
    """Replace the short forms by `getelementptr` and a load or store."""
    lines: list[str] = []
    for number, line in enumerate(text.splitlines()):
        read, write = _READ.match(line), _WRITE.match(line)
        if read:
            result, form, base, record, name = read.groups()
            word = int(_RECORDS[record][name])
            if form == "at":
                lines.append(f"  {result} = getelementptr i64, ptr {base}, i64 {word}")
                continue
            kind = "i64" if form == "word" else "ptr"
            lines.append(f"  %at{number} = getelementptr i64, ptr {base}, i64 {word}")
            lines.append(f"  {result} = load {kind}, ptr %at{number}, align 8")
        elif write:
            base, record, name, value = write.groups()
            word = int(_RECORDS[record][name])
            lines.append(f"  %at{number} = getelementptr i64, ptr {base}, i64 {word}")
            lines.append(f"  store i64 {value}, ptr %at{number}, align 8")
        else:
            lines.append(line)
    return "\n".join(lines) + "\n"


def _entries() -> str:
    count = abi.NUM_ENTRIES
    lines = [f"@slots = dso_local global [{count} x ptr] zeroinitializer, align 64"]
    for k in range(count):
        slot = f"getelementptr ([{count} x ptr], ptr @slots, i64 0, i64 {k})"
        lines.append(
            f"define dso_local i64 @entry_{k}() {{\n  %h = load ptr, ptr {slot}, align 8\n"
            f"  %code = tail call i64 @run(ptr %h)\n  ret i64 %code\n}}"
        )
    return "\n".join(lines) + "\n"


_SYSTEM_CALLS = {
    "x86_64": {"FUTEX": 202, "GETTID": 186, "GETCPU": 309, "SET_AFFINITY": 203},
    "aarch64": {"FUTEX": 98, "GETTID": 178, "GETCPU": 168, "SET_AFFINITY": 122},
}

# What the architectures do differently: a pause, a clock, a system call, and the
# floating-point mode. `float_mode` sets the default (round to nearest, subnormals kept) and
# returns what was there, or -1 if nothing had to change; `restore_float_mode` takes that.
_MACHINE = {
    "x86_64": """
define internal void @pause() alwaysinline {
  call void asm sideeffect "pause", ""()
  ret void
}
define dso_local i64 @ticks() {
  %t = call { i64, i64 } asm sideeffect "rdtsc", "={rax},={rdx}"()
  %low = extractvalue { i64, i64 } %t, 0
  %high = extractvalue { i64, i64 } %t, 1
  %up = shl i64 %high, 32
  %now = or i64 %up, %low
  ret i64 %now
}
define internal i64 @system(i64 %number, ptr %a, i64 %b, ptr %c, ptr %d) noinline {
  %r = call i64 asm sideeffect "syscall",
    "={rax},{rax},{rdi},{rsi},{rdx},{r10},~{rcx},~{r11},~{memory}"
    (i64 %number, ptr %a, i64 %b, ptr %c, ptr %d)
  ret i64 %r
}
declare void @llvm.x86.sse.stmxcsr(ptr)
declare void @llvm.x86.sse.ldmxcsr(ptr)

define internal i64 @float_mode() noinline {
  %place = alloca i32, align 4
  call void @llvm.x86.sse.stmxcsr(ptr %place)
  %old = load i32, ptr %place, align 4
  ; The six low bits say what happened and change nothing; 8064 is the default of the rest.
  %mode = and i32 %old, -64
  %plain = icmp eq i32 %mode, 8064
  br i1 %plain, label %same, label %change
same:
  ret i64 -1
change:
  store i32 8064, ptr %place, align 4
  call void @llvm.x86.sse.ldmxcsr(ptr %place)
  %was = zext i32 %old to i64
  ret i64 %was
}
define internal void @restore_float_mode(i64 %was) noinline {
  %place = alloca i32, align 4
  %old = trunc i64 %was to i32
  store i32 %old, ptr %place, align 4
  call void @llvm.x86.sse.ldmxcsr(ptr %place)
  ret void
}
""",
    "aarch64": """
define internal void @pause() alwaysinline {
  call void asm sideeffect "yield", ""()
  ret void
}
define dso_local i64 @ticks() {
  %now = call i64 asm sideeffect "mrs $0, cntvct_el0", "=r"()
  ret i64 %now
}
define internal i64 @system(i64 %number, ptr %a, i64 %b, ptr %c, ptr %d) noinline {
  %r = call i64 asm sideeffect "svc #0", "={x0},{x8},{x0},{x1},{x2},{x3},~{memory}"
    (i64 %number, ptr %a, i64 %b, ptr %c, ptr %d)
  ret i64 %r
}
define internal i64 @float_mode() noinline {
  %old = call i64 asm sideeffect "mrs $0, fpcr", "=r"()
  %plain = icmp eq i64 %old, 0
  br i1 %plain, label %same, label %change
same:
  ret i64 -1
change:
  call void asm sideeffect "msr fpcr, $0", "r"(i64 0)
  ret i64 %old
}
define internal void @restore_float_mode(i64 %was) noinline {
  call void asm sideeffect "msr fpcr, $0", "r"(i64 %was)
  ret void
}
""",
}  # fmt: skip

# The operating system likes to wake a thread on the CPU of the one that wakes it, above all in
# a virtual machine, where idle CPUs do not look idle; the two then share that CPU for
# milliseconds. So a sleeper is told to stay off the caller's CPU before it is woken.
_SYSTEM = """
declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)

define internal i64 @futex(ptr %word, i64 %op, i64 %value, ptr %timeout) noinline {
  %number = inttoptr i64 %value to ptr
  %r = call i64 @system(i64 @SYS_FUTEX, ptr %word, i64 %op, ptr %number, ptr %timeout)
  ret i64 %r
}

define internal void @keep_apart(ptr %worker) noinline {
  %mask = alloca [@MASK_BYTES x i8], align 8
  %cpu = alloca i64, align 8
  store i64 0, ptr %cpu, align 8
  %allowed = pointer %worker.Worker.CPU_MASK
  %thread = pointer %worker.Worker.THREAD_ID
  %has_mask = icmp ne ptr %allowed, null
  %has_started = icmp ne ptr %thread, null
  %possible = and i1 %has_mask, %has_started
  br i1 %possible, label %ask, label %exit
ask:
  %failed = call i64 @system(i64 @SYS_GETCPU, ptr %cpu, i64 0, ptr null, ptr null)
  %here = load i64, ptr %cpu, align 8
  %known = icmp ult i64 %here, @MASK_BITS
  br i1 %known, label %move, label %exit
move:
  call void @llvm.memcpy.p0.p0.i64(ptr %mask, ptr %allowed, i64 @MASK_BYTES, i1 false)
  %byte_index = lshr i64 %here, 3
  %byte_at = getelementptr i8, ptr %mask, i64 %byte_index
  %byte = load i8, ptr %byte_at, align 1
  %here8 = trunc i64 %here to i8
  %bit_index = and i8 %here8, 7
  %bit = shl i8 1, %bit_index
  %others = xor i8 %bit, -1
  %left = and i8 %byte, %others
  store i8 %left, ptr %byte_at, align 1
  %ignored = call i64 @system(i64 @SYS_SET_AFFINITY, ptr %thread, i64 @MASK_BYTES,
                              ptr %mask, ptr null)
  br label %exit
exit:
  ret void
}
"""

# Check the pending values, then commit them: variables, dependent words, chunk sizes.
_REBIND = """
define internal void @evaluate(ptr %h, i64 %first, i64 %last) {
entry:
  %program = pointer %h.Header.PROGRAM
  %regs = pointer %h.Header.REGISTERS
  br label %head
head:
  %i = phi i64 [ %first, %entry ], [ %i1, %next ]
  %more = icmp slt i64 %i, %last
  br i1 %more, label %body, label %exit
body:
  %word = shl i64 %i, 2
  %ins = getelementptr i64, ptr %program, i64 %word
  %op = load i64, ptr %ins, align 8
  %pd = getelementptr i64, ptr %ins, i64 1
  %d = load i64, ptr %pd, align 8
  %pa = getelementptr i64, ptr %ins, i64 2
  %ia = load i64, ptr %pa, align 8
  %pb = getelementptr i64, ptr %ins, i64 3
  %ib = load i64, ptr %pb, align 8
  %ra = getelementptr i64, ptr %regs, i64 %ia
  %a = load i64, ptr %ra, align 8
  %rb = getelementptr i64, ptr %regs, i64 %ib
  %b = load i64, ptr %rb, align 8
  switch i64 %op, label %add [ i64 @Opcode.MUL, label %mul
                               i64 @Opcode.FLOORDIV, label %div
                               i64 @Opcode.MOD, label %div
                               i64 @Opcode.MIN, label %min
                               i64 @Opcode.MAX, label %max ]
add:
  %sum = add i64 %a, %b
  br label %next
mul:
  %prod = mul i64 %a, %b
  br label %next
div:
  %legal = icmp sgt i64 %b, 0
  br i1 %legal, label %divide, label %next
divide:
  %q0 = sdiv i64 %a, %b
  %r0 = srem i64 %a, %b
  %negative = icmp slt i64 %r0, 0
  %qm = sub i64 %q0, 1
  %rp = add i64 %r0, %b
  %q = select i1 %negative, i64 %qm, i64 %q0
  %r = select i1 %negative, i64 %rp, i64 %r0
  %is_mod = icmp eq i64 %op, @Opcode.MOD
  %quot = select i1 %is_mod, i64 %r, i64 %q
  br label %next
min:
  %lt = icmp slt i64 %a, %b
  %low = select i1 %lt, i64 %a, i64 %b
  br label %next
max:
  %gt = icmp sgt i64 %a, %b
  %high = select i1 %gt, i64 %a, i64 %b
  br label %next
next:
  %v = phi i64 [ %sum, %add ], [ %prod, %mul ], [ 0, %div ], [ %quot, %divide ],
               [ %low, %min ], [ %high, %max ]
  %rd = getelementptr i64, ptr %regs, i64 %d
  store i64 %v, ptr %rd, align 8
  %i1 = add i64 %i, 1
  br label %head
exit:
  ret void
}

define internal i64 @rebind(ptr %h) noinline {
entry:
  %regs = pointer %h.Header.REGISTERS
  %pending = pointer %h.Header.PENDING
  %current = pointer %h.Header.VARIABLES
  %bounds = pointer %h.Header.BOUNDS
  %n = word %h.Header.NUM_VARIABLES
  br label %vars
vars:
  %i = phi i64 [ 0, %entry ], [ %i1, %var_ok ]
  %vars_left = icmp slt i64 %i, %n
  br i1 %vars_left, label %var, label %check
var:
  %pv = getelementptr i64, ptr %pending, i64 %i
  %v = load i64, ptr %pv, align 8
  %i2 = shl i64 %i, 1
  %pmin = getelementptr i64, ptr %bounds, i64 %i2
  %vmin = load i64, ptr %pmin, align 8
  %pmax = getelementptr i64, ptr %pmin, i64 1
  %vmax = load i64, ptr %pmax, align 8
  %over = icmp sge i64 %v, %vmin
  %under = icmp sle i64 %v, %vmax
  %inside = and i1 %over, %under
  br i1 %inside, label %var_ok, label %var_bad
var_bad:
  set %h.Header.ERROR_INDEX = %i
  ret i64 @Code.VARIABLE
var_ok:
  %rv = getelementptr i64, ptr %regs, i64 %i
  store i64 %v, ptr %rv, align 8
  %i1 = add i64 %i, 1
  br label %vars
check:
  %num_checked = word %h.Header.NUM_CHECKED
  call void @evaluate(ptr %h, i64 0, i64 %num_checked)
  %guards = pointer %h.Header.GUARDS
  %num_guards = word %h.Header.NUM_GUARDS
  br label %guards_head
guards_head:
  %g = phi i64 [ 0, %check ], [ %g1, %guard ]
  %guards_left = icmp slt i64 %g, %num_guards
  br i1 %guards_left, label %guard, label %inputs
guard:
  %pg = getelementptr i64, ptr %guards, i64 %g
  %gi = load i64, ptr %pg, align 8
  %rg = getelementptr i64, ptr %regs, i64 %gi
  %gv = load i64, ptr %rg, align 8
  %g1 = add i64 %g, 1
  %zero = icmp eq i64 %gv, 0
  br i1 %zero, label %guards_head, label %guard_bad
guard_bad:
  set %h.Header.ERROR_INDEX = %g
  ret i64 @Code.GUARD
inputs:
  %checks = pointer %h.Header.CHECKS
  %num_checks = word %h.Header.NUM_CHECKS
  br label %inputs_head
inputs_head:
  %c = phi i64 [ 0, %inputs ], [ %c1, %input ]
  %inputs_left = icmp slt i64 %c, %num_checks
  br i1 %inputs_left, label %input, label %commit
input:
  %c2 = shl i64 %c, 1
  %pc = getelementptr i64, ptr %checks, i64 %c2
  %ci = load i64, ptr %pc, align 8
  %pw = getelementptr i64, ptr %pc, i64 1
  %recorded = load ptr, ptr %pw, align 8
  %was = load i64, ptr %recorded, align 8
  %rc = getelementptr i64, ptr %regs, i64 %ci
  %is = load i64, ptr %rc, align 8
  %c1 = add i64 %c, 1
  %same = icmp eq i64 %was, %is
  br i1 %same, label %inputs_head, label %input_bad
input_bad:
  set %h.Header.ERROR_INDEX = %c
  ret i64 @Code.INPUT
commit:
  %k = phi i64 [ 0, %inputs_head ], [ %k1, %commit_one ]
  %commit_left = icmp slt i64 %k, %n
  br i1 %commit_left, label %commit_one, label %evaluate
commit_one:
  %from = getelementptr i64, ptr %pending, i64 %k
  %value = load i64, ptr %from, align 8
  %to = getelementptr i64, ptr %current, i64 %k
  store i64 %value, ptr %to, align 8
  %k1 = add i64 %k, 1
  br label %commit
evaluate:
  %num_ins = word %h.Header.NUM_INSTRUCTIONS
  call void @evaluate(ptr %h, i64 %num_checked, i64 %num_ins)
  %scatter = pointer %h.Header.SCATTER
  %num_scatter = word %h.Header.NUM_SCATTER
  br label %scatter_head
scatter_head:
  %s = phi i64 [ 0, %evaluate ], [ %s1, %scatter_one ]
  %scatter_left = icmp slt i64 %s, %num_scatter
  br i1 %scatter_left, label %scatter_one, label %exit
scatter_one:
  %s2 = shl i64 %s, 1
  %ps = getelementptr i64, ptr %scatter, i64 %s2
  %si = load i64, ptr %ps, align 8
  %pdest = getelementptr i64, ptr %ps, i64 1
  %dest = load ptr, ptr %pdest, align 8
  %rs = getelementptr i64, ptr %regs, i64 %si
  %sv = load i64, ptr %rs, align 8
  store i64 %sv, ptr %dest, align 8
  %s1 = add i64 %s, 1
  br label %scatter_head
exit:
  set %h.Header.DIRTY = 0
  %threads = word %h.Header.THREADS
  %alone = icmp sle i64 %threads, 1
  br i1 %alone, label %ready, label %share
share:
  call void @size_chunks(ptr %h)
  br label %ready
ready:
  ret i64 @Code.OK
}
"""

# Bind without running: a profiled run must know its number of chunks before it starts.
_BIND = """
define dso_local i64 @bind(ptr %h) {
entry:
  %released = icmp eq ptr %h, null
  br i1 %released, label %gone, label %alive
gone:
  ret i64 @Code.RELEASED
alive:
  %busy = at %h.Header.BUSY
  %swap = cmpxchg ptr %busy, i64 0, i64 1 acquire monotonic
  %won = extractvalue { i64, i1 } %swap, 1
  br i1 %won, label %mine, label %taken
taken:
  ret i64 @Code.BUSY
mine:
  %dirty = word %h.Header.DIRTY
  %is_dirty = icmp ne i64 %dirty, 0
  br i1 %is_dirty, label %do, label %done
do:
  %bound = call i64 @rebind(ptr %h)
  br label %done
done:
  %code = phi i64 [ 0, %mine ], [ %bound, %do ]
  store atomic i64 0, ptr %busy release, align 8
  ret i64 %code
}
"""

# Chunks: ~20 us of estimated work each, at most 4 per participant; the chunks of a chain
# of rows stay at 20 us, so that what one row wrote is still in the cache for the next.
_CHUNKS = """
define internal void @size_chunks(ptr %h) noinline {
entry:
  %rows = pointer %h.Header.ROWS
  %segments = pointer %h.Header.SEGMENTS
  %steps = pointer %h.Header.STEPS
  %num_steps = word %h.Header.NUM_STEPS
  %threads = word %h.Header.THREADS
  %most = shl i64 %threads, 2
  br label %step_head
step_head:
  %i = phi i64 [ 0, %entry ], [ %i1, %step_done ]
  %large = phi i64 [ 0, %entry ], [ %large1, %step_done ]
  %steps_left = icmp slt i64 %i, %num_steps
  br i1 %steps_left, label %step, label %exit
step:
  %step_word = shl i64 %i, 3
  %st = getelementptr i64, ptr %steps, i64 %step_word
  %first_seg = word %st.Step.FIRST_SEGMENT
  %num_seg = word %st.Step.NUM_SEGMENTS
  %end_seg = add i64 %first_seg, %num_seg
  br label %seg_head
seg_head:
  %j = phi i64 [ %first_seg, %step ], [ %j1, %seg_done ]
  %chunks = phi i64 [ 0, %step ], [ %chunks1, %seg_done ]
  %work = phi i64 [ 0, %step ], [ %work1, %seg_done ]
  %segs_left = icmp slt i64 %j, %end_seg
  br i1 %segs_left, label %seg, label %step_done
seg:
  %seg_word = shl i64 %j, 3
  %sg = getelementptr i64, ptr %segments, i64 %seg_word
  %first_row = word %sg.Segment.FIRST_ROW
  %num_rows = word %sg.Segment.NUM_ROWS
  %row_word = shl i64 %first_row, 3
  %row0 = getelementptr i64, ptr %rows, i64 %row_word
  %tiles = word %row0.Row.TILES
  br label %row_head
row_head:
  %k = phi i64 [ 0, %seg ], [ %k1, %row ]
  %sum = phi i64 [ 0, %seg ], [ %sum1, %row ]
  %rows_left = icmp slt i64 %k, %num_rows
  br i1 %rows_left, label %row, label %seg_size
row:
  %off = shl i64 %k, 3
  %rw = getelementptr i64, ptr %row0, i64 %off
  %ns = word %rw.Row.WORK_NS
  %sum1 = add i64 %sum, %ns
  %k1 = add i64 %k, 1
  br label %row_head
seg_size:
  %work1 = add i64 %work, %sum
  set %sg.Segment.TILES = %tiles
  set %sg.Segment.FIRST_CHUNK = %chunks
  %empty = icmp sle i64 %tiles, 0
  br i1 %empty, label %seg_done, label %seg_some
seg_some:
  ; Most segments of a rebound plan are small: one chunk, and no divisions to find that out.
  %is_small = icmp slt i64 %sum, @LARGE_NS
  br i1 %is_small, label %seg_whole, label %seg_chunk
seg_whole:
  set %sg.Segment.CHUNK_TILES = %tiles
  br label %seg_done
seg_chunk:
  %wanted = sdiv i64 %sum, @LARGE_NS
  %is_chain = icmp sgt i64 %num_rows, 1
  %limit = select i1 %is_chain, i64 %tiles, i64 %most
  %over = icmp sgt i64 %wanted, %limit
  %w1 = select i1 %over, i64 %limit, i64 %wanted
  %few = icmp slt i64 %w1, 1
  %w2 = select i1 %few, i64 1, i64 %w1
  %t1 = add i64 %tiles, %w2
  %t2 = sub i64 %t1, 1
  %chunk_tiles = udiv i64 %t2, %w2
  %t3 = add i64 %tiles, %chunk_tiles
  %t4 = sub i64 %t3, 1
  %count = udiv i64 %t4, %chunk_tiles
  set %sg.Segment.CHUNK_TILES = %chunk_tiles
  br label %seg_done
seg_done:
  %num_chunks = phi i64 [ 0, %seg_size ], [ 1, %seg_whole ], [ %count, %seg_chunk ]
  set %sg.Segment.NUM_CHUNKS = %num_chunks
  %chunks1 = add i64 %chunks, %num_chunks
  %j1 = add i64 %j, 1
  br label %seg_head
step_done:
  set %st.Step.NUM_CHUNKS = %chunks
  set %st.Step.WORK_NS = %work
  %enough = icmp sge i64 %work, @LARGE_NS
  %several = icmp sgt i64 %chunks, 1
  %shared = and i1 %enough, %several
  %shared64 = zext i1 %shared to i64
  set %st.Step.SHARED = %shared64
  %share = select i1 %shared, i64 %work, i64 0
  %large1 = add i64 %large, %share
  %i1 = add i64 %i, 1
  br label %step_head
exit:
  set %h.Header.LARGE_WORK = %large
  ret void
}
"""

_WALK = """
declare void @llvm.memmove.p0.p0.i64(ptr, ptr, i64, i1)

define internal void @call_row(ptr %row, i64 %index, ptr %lane, i64 %begin, i64 %end) alwaysinline {
  %kind = word %row.Row.KIND
  %is_copy = icmp eq i64 %kind, @RowKind.COPY
  br i1 %is_copy, label %copy, label %kernel
kernel:
  set %lane.Lane.ROW = %index
  %fn = pointer %row.Row.FUNCTION
  %buffers = pointer %row.Row.BUFFERS
  %vals = pointer %row.Row.VALUES
  call void %fn(ptr %lane, ptr %buffers, ptr %vals, i64 %begin, i64 %end)
  %status = word %lane.Lane.STATUS_CODE
  %failed = icmp ne i64 %status, 0
  br i1 %failed, label %note, label %clean
note:
  call void @note_status(ptr %lane, i64 %begin)
  ret void
clean:
  ret void
copy:
  %pair = pointer %row.Row.BUFFERS
  %size = word %row.Row.VALUES
  %tile_bytes = word %row.Row.TILE_BYTES
  %from = mul i64 %begin, %tile_bytes
  %to0 = mul i64 %end, %tile_bytes
  %over = icmp sgt i64 %to0, %size
  %to = select i1 %over, i64 %size, i64 %to0
  %length = sub i64 %to, %from
  %dst0 = load ptr, ptr %pair, align 8
  %psrc = getelementptr ptr, ptr %pair, i64 1
  %src0 = load ptr, ptr %psrc, align 8
  %dst = getelementptr i8, ptr %dst0, i64 %from
  %src = getelementptr i8, ptr %src0, i64 %from
  call void @llvm.memmove.p0.p0.i64(ptr %dst, ptr %src, i64 %length, i1 false)
  ret void
}

; Keep the lowest failure that this lane saw, and let the next call report its own.
define internal void @note_status(ptr %lane, i64 %begin) noinline cold {
  %code = word %lane.Lane.STATUS_CODE
  set %lane.Lane.STATUS_CODE = 0
  %row = word %lane.Lane.STATUS_ROW
  %value = word %lane.Lane.STATUS_VALUE
  %best = word %lane.Lane.BEST_CODE
  %best_row = word %lane.Lane.BEST_ROW
  %best_tile = word %lane.Lane.BEST_TILE
  %first = icmp eq i64 %best, 0
  %lower_row = icmp slt i64 %row, %best_row
  %same_row = icmp eq i64 %row, %best_row
  %lower_tile = icmp slt i64 %begin, %best_tile
  %lower_here = and i1 %same_row, %lower_tile
  %lower = or i1 %lower_row, %lower_here
  %keep = or i1 %first, %lower
  br i1 %keep, label %store, label %exit
store:
  set %lane.Lane.BEST_CODE = %code
  set %lane.Lane.BEST_ROW = %row
  set %lane.Lane.BEST_TILE = %begin
  set %lane.Lane.BEST_VALUE = %value
  br label %exit
exit:
  ret void
}

define internal void @run_chunk(ptr %h, ptr %st, i64 %chunk, ptr %lane) noinline {
entry:
  %rows = pointer %h.Header.ROWS
  %segments = pointer %h.Header.SEGMENTS
  %first_seg = word %st.Step.FIRST_SEGMENT
  br label %find
find:
  %j = phi i64 [ %first_seg, %entry ], [ %j1, %find ]
  %seg_word = shl i64 %j, 3
  %sg = getelementptr i64, ptr %segments, i64 %seg_word
  %first_chunk = word %sg.Segment.FIRST_CHUNK
  %num_chunks = word %sg.Segment.NUM_CHUNKS
  %end_chunk = add i64 %first_chunk, %num_chunks
  %j1 = add i64 %j, 1
  %found = icmp slt i64 %chunk, %end_chunk
  br i1 %found, label %range, label %find
range:
  %size = word %sg.Segment.CHUNK_TILES
  %tiles = word %sg.Segment.TILES
  %nth = sub i64 %chunk, %first_chunk
  %begin = mul i64 %nth, %size
  %end0 = add i64 %begin, %size
  %over = icmp sgt i64 %end0, %tiles
  %end = select i1 %over, i64 %tiles, i64 %end0
  %first_row = word %sg.Segment.FIRST_ROW
  %num_rows = word %sg.Segment.NUM_ROWS
  %end_row = add i64 %first_row, %num_rows
  br label %row
row:
  %r = phi i64 [ %first_row, %range ], [ %r1, %row ]
  %row_word = shl i64 %r, 3
  %rw = getelementptr i64, ptr %rows, i64 %row_word
  call void @call_row(ptr %rw, i64 %r, ptr %lane, i64 %begin, i64 %end)
  %r1 = add i64 %r, 1
  %left = icmp slt i64 %r1, %end_row
  br i1 %left, label %row, label %exit
exit:
  ret void
}

define internal i64 @walk(ptr %h, i64 %start) noinline {
entry:
  %rows = pointer %h.Header.ROWS
  %steps = pointer %h.Header.STEPS
  %num_steps = word %h.Header.NUM_STEPS
  %lane = pointer %h.Header.LANES
  %deadline = word %h.Header.DEADLINE
  br label %head
head:
  %i = phi i64 [ %start, %entry ], [ %i1, %next ]
  %left = icmp slt i64 %i, %num_steps
  br i1 %left, label %step, label %finished
step:
  %word = shl i64 %i, 3
  %st = getelementptr i64, ptr %steps, i64 %word
  %i1 = add i64 %i, 1
  %shared = word %st.Step.SHARED
  %is_shared = icmp ne i64 %shared, 0
  br i1 %is_shared, label %large, label %small
small:
  %first_row = word %st.Step.FIRST_ROW
  %kind = word %st.Step.KIND
  %is_host = icmp eq i64 %kind, @RowKind.HOST_CALL
  br i1 %is_host, label %host, label %small_rows
small_rows:
  %num_rows = word %st.Step.NUM_ROWS
  %end_row = add i64 %first_row, %num_rows
  br label %row_head
row_head:
  %r = phi i64 [ %first_row, %small_rows ], [ %r1, %row_done ]
  %rows_left = icmp slt i64 %r, %end_row
  br i1 %rows_left, label %row, label %small_done
row:
  %row_word = shl i64 %r, 3
  %rw = getelementptr i64, ptr %rows, i64 %row_word
  %tiles = word %rw.Row.TILES
  %r1 = add i64 %r, 1
  %any = icmp sgt i64 %tiles, 0
  br i1 %any, label %call, label %row_done
call:
  call void @call_row(ptr %rw, i64 %r, ptr %lane, i64 0, i64 %tiles)
  br label %row_done
row_done:
  br label %row_head
small_done:
  ; Reading the clock costs as much as a tiny kernel: every 16th small step is enough.
  %low = and i64 %i1, 15
  %now_or_never = icmp eq i64 %low, 0
  br i1 %now_or_never, label %clock, label %next
large:
  %code = call i64 @run_large(ptr %h, ptr %st, i64 %i)
  %ok = icmp eq i64 %code, 0
  br i1 %ok, label %clock, label %unready
clock:
  %now = call i64 @ticks()
  %late = sub i64 %now, %deadline
  %is_late = icmp sgt i64 %late, 0
  %is_last = icmp sge i64 %i1, %num_steps
  %on_time = xor i1 %is_late, true
  %go_on = or i1 %on_time, %is_last
  br i1 %go_on, label %next, label %again
next:
  br label %head
again:
  %again_at = add i64 %i1, 1
  set %h.Header.PARKED = %again_at
  ret i64 @Code.AGAIN
host:
  %host_at = add i64 %i1, 1
  set %h.Header.PARKED = %host_at
  set %h.Header.ERROR_INDEX = %first_row
  ret i64 @Code.HOST_CALL
unready:
  set %h.Header.PARKED = %i1
  ret i64 %code
finished:
  ret i64 @Code.OK
}
"""

_EVENTS = """
define internal void @call_row_timed(ptr %row, i64 %index, ptr %lane, i64 %begin, i64 %end)
    alwaysinline {
  %start = call i64 @ticks()
  call void @call_row(ptr %row, i64 %index, ptr %lane, i64 %begin, i64 %end)
  %stop = call i64 @ticks()
  %count = word %lane.Lane.NUM_EVENTS
  %room = word %lane.Lane.MAX_EVENTS
  %next = add i64 %count, 1
  set %lane.Lane.NUM_EVENTS = %next
  %fits = icmp slt i64 %count, %room
  br i1 %fits, label %write, label %exit
write:
  %events = pointer %lane.Lane.EVENTS
  %offset = mul i64 %count, @EVENT_WORDS
  %event = getelementptr i64, ptr %events, i64 %offset
  %tiles = sub i64 %end, %begin
  set %event.Event.ROW = %index
  set %event.Event.START = %start
  set %event.Event.END = %stop
  set %event.Event.TILES = %tiles
  br label %exit
exit:
  ret void
}
"""

_SHARE = """
define internal i64 @run_large(ptr %h, ptr %st, i64 %index) noinline {
entry:
  %chunks = word %st.Step.NUM_CHUNKS
  %lane = pointer %h.Header.LANES
  %threads = word %h.Header.THREADS
  %solo = word %h.Header.SOLO
  %few = icmp sle i64 %threads, 1
  %left_alone = icmp ne i64 %solo, 0
  %alone = or i1 %few, %left_alone
  br i1 %alone, label %single, label %shared
single:
  %c = phi i64 [ 0, %entry ], [ %c1, %single ]
  call void @run_chunk(ptr %h, ptr %st, i64 %c, ptr %lane)
  %c1 = add i64 %c, 1
  %left = icmp slt i64 %c1, %chunks
  br i1 %left, label %single, label %exit
shared:
  %ready = word %h.Header.POOL_READY
  %is_ready = icmp ne i64 %ready, 0
  br i1 %is_ready, label %publish, label %not_ready
not_ready:
  ret i64 @Code.START_POOL
publish:
  %claim = at %h.Header.CLAIM
  %done = at %h.Header.DONE
  store atomic i64 0, ptr %done monotonic, align 8
  %open = shl i64 %index, 32
  store atomic i64 %open, ptr %claim seq_cst, align 8
  %begin = call i64 @ticks()
  call void @recruit(ptr %h)
  br label %take
take:
  ; The caller counts its own chunks for itself: DONE is a line that workers write.
  %others = phi i64 [ %chunks, %publish ], [ %others1, %work ]
  %mine = call i64 @take_chunk(ptr %h, i64 %index, i64 %chunks)
  %got = icmp sge i64 %mine, 0
  br i1 %got, label %work, label %wait
work:
  call void @dawdle(ptr %h)
  call void @run_chunk(ptr %h, ptr %st, i64 %mine, ptr %lane)
  %others1 = sub i64 %others, 1
  br label %take
wait:
  call void @wait_done(ptr %h, i64 %others, i64 %begin)
  store atomic i64 @NO_CLAIM, ptr %claim release, align 8
  br label %exit
exit:
  ret i64 @Code.OK
}

; With JITTER, wait for a random time, so that participants meet in every order.
define internal void @dawdle(ptr %h) noinline {
  %jitter = word %h.Header.JITTER
  %has_jitter = icmp ne i64 %jitter, 0
  br i1 %has_jitter, label %draw, label %exit
draw:
  %noise = call i64 @ticks()
  %mixed = mul i64 %noise, 6364136223846793005
  %turns = lshr i64 %mixed, 52
  br label %turn
turn:
  %turned = phi i64 [ 0, %draw ], [ %turned1, %turn ]
  call void @pause()
  %turned1 = add i64 %turned, 1
  %turning = icmp slt i64 %turned1, %turns
  br i1 %turning, label %turn, label %exit
exit:
  ret void
}

; The next chunk of the caller's own step, or -1 when all are taken.
define internal i64 @take_chunk(ptr %h, i64 %index, i64 %chunks) alwaysinline {
  %claim = at %h.Header.CLAIM
  %ticket = load atomic i64, ptr %claim acquire, align 8
  br label %retry
retry:
  %word = phi i64 [ %ticket, %0 ], [ %seen, %try ]
  %next = and i64 %word, 4294967295
  %left = icmp slt i64 %next, %chunks
  br i1 %left, label %try, label %none
try:
  %word1 = add i64 %word, 1
  %swap = cmpxchg ptr %claim, i64 %word, i64 %word1 seq_cst seq_cst
  %seen = extractvalue { i64, i1 } %swap, 0
  %won = extractvalue { i64, i1 } %swap, 1
  br i1 %won, label %mine, label %retry
mine:
  ret i64 %next
none:
  ret i64 -1
}

define internal void @wait_done(ptr %h, i64 %chunks, i64 %begin) noinline {
entry:
  %timeout = alloca { i64, i64 }, align 8
  %since = call i64 @ticks()
  %spent = sub i64 %since, %begin
  %slice = word %h.Header.SLICE_TICKS
  %grace = lshr i64 %slice, 6
  %patience = add i64 %spent, %grace
  %done = at %h.Header.DONE
  %waiting = at %h.Header.WAITING
  br label %spin
spin:
  %k = phi i64 [ 0, %entry ], [ %k1, %again ]
  %d = load atomic i64, ptr %done acquire, align 8
  %all = icmp sge i64 %d, %chunks
  br i1 %all, label %exit, label %again
again:
  call void @pause()
  %k1 = add i64 %k, 1
  %more = icmp slt i64 %k1, 2000
  br i1 %more, label %spin, label %block
block:
  store i64 0, ptr %timeout, align 8
  %ns = getelementptr i64, ptr %timeout, i64 1
  store i64 1000000, ptr %ns, align 8
  store atomic i64 1, ptr %waiting seq_cst, align 8
  br label %sleep
sleep:
  %d2 = load atomic i64, ptr %done seq_cst, align 8
  %all2 = icmp sge i64 %d2, %chunks
  br i1 %all2, label %woken, label %futex
futex:
  %ignored = call i64 @futex(ptr %done, i64 128, i64 %d2, ptr %timeout)
  %now = call i64 @ticks()
  %waited = sub i64 %now, %since
  %is_late = icmp sgt i64 %waited, %patience
  br i1 %is_late, label %late, label %sleep
late:
  ; A chunk takes no longer than the caller took for all of its own: the worker has lost its
  ; core to somebody else. Waiting for it at every step would cost a time slice each; the
  ; caller does the rest of this run by itself, and for a while it asks nobody.
  %known = word %h.Header.SOLO
  %is_known = icmp ne i64 %known, 0
  br i1 %is_known, label %sleep, label %rest
rest:
  set %h.Header.SOLO = 1
  %last = word %h.Header.BACKOFF
  %twice = shl i64 %last, 1
  %most = shl i64 %slice, 4
  %too_long = icmp sgt i64 %twice, %most
  %capped = select i1 %too_long, i64 %most, i64 %twice
  %too_short = icmp slt i64 %capped, %slice
  %backoff = select i1 %too_short, i64 %slice, i64 %capped
  set %h.Header.BACKOFF = %backoff
  %until = add i64 %now, %backoff
  set %h.Header.SOLO_UNTIL = %until
  br label %sleep
woken:
  store atomic i64 0, ptr %waiting seq_cst, align 8
  br label %exit
exit:
  ret void
}

; Offer the plan's free lanes to free workers; wake sleepers only for enough work.
define internal void @recruit(ptr %h) noinline {
entry:
  %lanes = pointer %h.Header.LANES
  %threads = word %h.Header.THREADS
  %pool = pointer %h.Header.POOL
  %num_workers = word %h.Header.NUM_WORKERS
  %work = word %h.Header.LARGE_WORK
  %may_wake = icmp sge i64 %work, @WAKE_NS
  br label %lane_head
lane_head:
  %l = phi i64 [ 1, %entry ], [ %l1, %lane_next ]
  %w = phi i64 [ 0, %entry ], [ %w_out, %lane_next ]
  %lanes_left = icmp slt i64 %l, %threads
  %workers_left = icmp slt i64 %w, %num_workers
  %both = and i1 %lanes_left, %workers_left
  br i1 %both, label %lane_one, label %exit
lane_one:
  %lane_off = mul i64 %l, @LANE_BYTES
  %lane = getelementptr i8, ptr %lanes, i64 %lane_off
  %taken = at %lane.Lane.TAKEN
  %t = load atomic i64, ptr %taken acquire, align 8
  %is_free = icmp eq i64 %t, 0
  br i1 %is_free, label %worker_head, label %lane_next
worker_head:
  %v = phi i64 [ %w, %lane_one ], [ %v1, %worker_next ]
  %some = icmp slt i64 %v, %num_workers
  br i1 %some, label %worker_one, label %lane_next
worker_one:
  %v1 = add i64 %v, 1
  %worker_off = mul i64 %v, @WORKER_BYTES
  %worker = getelementptr i8, ptr %pool, i64 %worker_off
  %mailbox = at %worker.Worker.MAILBOX
  %sleeping = at %worker.Worker.SLEEPING
  %m = load atomic i64, ptr %mailbox monotonic, align 8
  %asleep64 = load atomic i64, ptr %sleeping monotonic, align 8
  %idle = icmp eq i64 %m, 0
  %awake = icmp eq i64 %asleep64, 0
  %reachable = or i1 %awake, %may_wake
  %try = and i1 %idle, %reachable
  br i1 %try, label %offer, label %worker_next
offer:
  %used = word %h.Header.USED_LANES
  %fresh = icmp sge i64 %l, %used
  br i1 %fresh, label %first_use, label %hand_over
first_use:
  set %lane.Lane.STATUS_CODE = 0
  set %lane.Lane.BEST_CODE = 0
  %used1 = add i64 %l, 1
  set %h.Header.USED_LANES = %used1
  br label %hand_over
hand_over:
  %worker_int = ptrtoint ptr %worker to i64
  set %lane.Lane.WORKER = %worker_int
  set %h.Header.RECRUITED = 1
  store atomic i64 1, ptr %taken monotonic, align 8
  %lane_int = ptrtoint ptr %lane to i64
  %swap = cmpxchg ptr %mailbox, i64 0, i64 %lane_int seq_cst seq_cst
  %won = extractvalue { i64, i1 } %swap, 1
  br i1 %won, label %offered, label %lost
lost:
  store atomic i64 0, ptr %taken monotonic, align 8
  br label %worker_next
worker_next:
  br label %worker_head
offered:
  %asleep2 = load atomic i64, ptr %sleeping seq_cst, align 8
  %must_wake = icmp ne i64 %asleep2, 0
  br i1 %must_wake, label %wake, label %lane_next
wake:
  call void @keep_apart(ptr %worker)
  store atomic i64 0, ptr %sleeping seq_cst, align 8
  %ignored = call i64 @futex(ptr %sleeping, i64 129, i64 1, ptr null)
  br label %lane_next
lane_next:
  %w_out = phi i64 [ %w, %lane_one ], [ %v, %worker_head ], [ %v1, %offered ], [ %v1, %wake ]
  %l1 = add i64 %l, 1
  br label %lane_head
exit:
  ret void
}

; Take back what no worker accepted and wait for the rest to leave.
define internal void @disband(ptr %h) noinline {
entry:
  %timeout = alloca { i64, i64 }, align 8
  store i64 0, ptr %timeout, align 8
  %ns = getelementptr i64, ptr %timeout, i64 1
  store i64 100000, ptr %ns, align 8
  %finished = at %h.Header.FINISHED
  store atomic i64 1, ptr %finished release, align 8
  %lanes = pointer %h.Header.LANES
  %threads = word %h.Header.THREADS
  br label %head
head:
  %l = phi i64 [ 1, %entry ], [ %l1, %next ]
  %left = icmp slt i64 %l, %threads
  br i1 %left, label %one, label %exit
one:
  %lane_off = mul i64 %l, @LANE_BYTES
  %lane = getelementptr i8, ptr %lanes, i64 %lane_off
  %taken = at %lane.Lane.TAKEN
  %t = load atomic i64, ptr %taken acquire, align 8
  %out = icmp ne i64 %t, 0
  br i1 %out, label %revoke, label %next
revoke:
  %worker = pointer %lane.Lane.WORKER
  %mailbox = at %worker.Worker.MAILBOX
  %lane_int = ptrtoint ptr %lane to i64
  %swap = cmpxchg ptr %mailbox, i64 %lane_int, i64 0 seq_cst seq_cst
  %won = extractvalue { i64, i1 } %swap, 1
  br i1 %won, label %revoked, label %spin
revoked:
  store atomic i64 0, ptr %taken monotonic, align 8
  br label %next
spin:
  %k = phi i64 [ 0, %revoke ], [ %k1, %pause ]
  %t2 = load atomic i64, ptr %taken acquire, align 8
  %back = icmp eq i64 %t2, 0
  br i1 %back, label %next, label %pause
pause:
  call void @pause()
  %k1 = add i64 %k, 1
  %more = icmp slt i64 %k1, 2000
  br i1 %more, label %spin, label %sleep
sleep:
  %ignored = call i64 @futex(ptr %taken, i64 128, i64 1, ptr %timeout)
  %t3 = load atomic i64, ptr %taken acquire, align 8
  %back2 = icmp eq i64 %t3, 0
  br i1 %back2, label %next, label %sleep
next:
  %l1 = add i64 %l, 1
  br label %head
exit:
  set %h.Header.RECRUITED = 0
  ret void
}
"""

_RUN = """
define internal i64 @run(ptr %h) {
  %was = call i64 @float_mode()
  %code = call i64 @run_plan(ptr %h)
  %changed = icmp sge i64 %was, 0
  br i1 %changed, label %restore, label %exit
restore:
  call void @restore_float_mode(i64 %was)
  br label %exit
exit:
  ret i64 %code
}

define internal i64 @run_plan(ptr %h) {
entry:
  %released = icmp eq ptr %h, null
  br i1 %released, label %gone, label %alive
gone:
  ret i64 @Code.RELEASED
alive:
  %resume = word %h.Header.RESUME
  %is_resume = icmp ne i64 %resume, 0
  br i1 %is_resume, label %go_on, label %fresh
go_on:
  set %h.Header.RESUME = 0
  %from = sub i64 %resume, 1
  br label %start
fresh:
  %busy = at %h.Header.BUSY
  %swap = cmpxchg ptr %busy, i64 0, i64 1 acquire monotonic
  %won = extractvalue { i64, i1 } %swap, 1
  br i1 %won, label %mine, label %taken
taken:
  ret i64 @Code.BUSY
mine:
  %dirty = word %h.Header.DIRTY
  %is_dirty = icmp ne i64 %dirty, 0
  br i1 %is_dirty, label %bind, label %ready
bind:
  %bound = call i64 @rebind(ptr %h)
  %bind_ok = icmp eq i64 %bound, 0
  br i1 %bind_ok, label %ready, label %refused
refused:
  store atomic i64 0, ptr %busy release, align 8
  ret i64 %bound
ready:
  set %h.Header.VALID = 0
  set %h.Header.USED_LANES = 1
  %attempts = word %h.Header.ATTEMPTS
  %attempts1 = add i64 %attempts, 1
  set %h.Header.ATTEMPTS = %attempts1
  %lane0 = pointer %h.Header.LANES
  set %lane0.Lane.STATUS_CODE = 0
  set %lane0.Lane.BEST_CODE = 0
  br label %start
start:
  %first = phi i64 [ %from, %go_on ], [ 0, %ready ]
  %finished_flag = at %h.Header.FINISHED
  store atomic i64 0, ptr %finished_flag monotonic, align 8
  %now = call i64 @ticks()
  %slice = word %h.Header.SLICE_TICKS
  %deadline = add i64 %now, %slice
  set %h.Header.DEADLINE = %deadline
  %until = word %h.Header.SOLO_UNTIL
  %resting = icmp slt i64 %now, %until
  %solo = zext i1 %resting to i64
  set %h.Header.SOLO = %solo
  %code = call i64 @walk(ptr %h, i64 %first)
  %recruited = word %h.Header.RECRUITED
  %has_help = icmp ne i64 %recruited, 0
  br i1 %has_help, label %dismiss, label %ended
dismiss:
  call void @disband(ptr %h)
  %was_solo = word %h.Header.SOLO
  %was_late = icmp ne i64 %was_solo, 0
  br i1 %was_late, label %ended, label %in_time
in_time:
  %backoff = word %h.Header.BACKOFF
  %relaxed = lshr i64 %backoff, 1
  set %h.Header.BACKOFF = %relaxed
  br label %ended
ended:
  %complete = icmp eq i64 %code, 0
  br i1 %complete, label %collect, label %parked
parked:
  ret i64 %code
collect:
  %status = call i64 @first_status(ptr %h)
  %clean = icmp eq i64 %status, 0
  br i1 %clean, label %success, label %failure
success:
  %generation = word %h.Header.GENERATION
  %generation1 = add i64 %generation, 1
  set %h.Header.GENERATION = %generation1
  set %h.Header.VALID = 1
  br label %leave
failure:
  br label %leave
leave:
  %result = phi i64 [ @Code.OK, %success ], [ @Code.STATUS, %failure ]
  %busy2 = at %h.Header.BUSY
  store atomic i64 0, ptr %busy2 release, align 8
  ret i64 %result
}

; The lowest failure over all lanes used, copied into the header; 0 if clean.
define internal i64 @first_status(ptr %h) alwaysinline {
entry:
  %lanes = pointer %h.Header.LANES
  %used = word %h.Header.USED_LANES
  br label %head
head:
  %l = phi i64 [ 0, %entry ], [ %l1, %next ]
  %best = phi i64 [ 9223372036854775807, %entry ], [ %best1, %next ]
  %best_tile = phi i64 [ 0, %entry ], [ %best_tile1, %next ]
  %any = phi i64 [ 0, %entry ], [ %any1, %next ]
  %left = icmp slt i64 %l, %used
  br i1 %left, label %one, label %exit
one:
  %lane_off = mul i64 %l, @LANE_BYTES
  %lane = getelementptr i8, ptr %lanes, i64 %lane_off
  %code = word %lane.Lane.BEST_CODE
  %bad = icmp ne i64 %code, 0
  br i1 %bad, label %compare, label %next
compare:
  %row = word %lane.Lane.BEST_ROW
  %tile = word %lane.Lane.BEST_TILE
  %lower_row = icmp slt i64 %row, %best
  %same_row = icmp eq i64 %row, %best
  %lower_tile = icmp slt i64 %tile, %best_tile
  %lower_here = and i1 %same_row, %lower_tile
  %lower = or i1 %lower_row, %lower_here
  br i1 %lower, label %keep, label %next
keep:
  %value = word %lane.Lane.BEST_VALUE
  set %h.Header.ERROR_INDEX = %row
  set %h.Header.STATUS_CODE = %code
  set %h.Header.STATUS_VALUE = %value
  br label %next
next:
  %best1 = phi i64 [ %best, %one ], [ %best, %compare ], [ %row, %keep ]
  %best_tile1 = phi i64 [ %best_tile, %one ], [ %best_tile, %compare ], [ %tile, %keep ]
  %any1 = phi i64 [ %any, %one ], [ %any, %compare ], [ 1, %keep ]
  %l1 = add i64 %l, 1
  br label %head
exit:
  ret i64 %any
}
"""

_WORKER = """
; Take chunks of whatever step is published until the run ends, or nothing came for a while.
define internal void @help(ptr %h, ptr %lane) noinline {
entry:
  %steps = pointer %h.Header.STEPS
  %idle_ticks = word %h.Header.IDLE_TICKS
  %claim = at %h.Header.CLAIM
  %done = at %h.Header.DONE
  %waiting = at %h.Header.WAITING
  %finished = at %h.Header.FINISHED
  %t0 = call i64 @ticks()
  %limit0 = add i64 %t0, %idle_ticks
  br label %look
look:
  %limit = phi i64 [ %limit0, %entry ], [ %limit, %try ], [ %limit, %idle ], [ %limit1, %worked ]
  %word = load atomic i64, ptr %claim acquire, align 8
  %open = icmp sge i64 %word, 0
  br i1 %open, label %published, label %nothing
published:
  %index = ashr i64 %word, 32
  %next = and i64 %word, 4294967295
  %step_word = shl i64 %index, 3
  %st = getelementptr i64, ptr %steps, i64 %step_word
  %chunks = word %st.Step.NUM_CHUNKS
  %left = icmp slt i64 %next, %chunks
  br i1 %left, label %try, label %nothing
try:
  %word1 = add i64 %word, 1
  %swap = cmpxchg ptr %claim, i64 %word, i64 %word1 seq_cst seq_cst
  %won = extractvalue { i64, i1 } %swap, 1
  br i1 %won, label %work, label %look
work:
  call void @dawdle(ptr %h)
  call void @run_chunk(ptr %h, ptr %st, i64 %next, ptr %lane)
  %before = atomicrmw add ptr %done, i64 1 seq_cst
  %asleep = load atomic i64, ptr %waiting seq_cst, align 8
  %must_wake = icmp ne i64 %asleep, 0
  br i1 %must_wake, label %wake, label %worked
wake:
  %ignored = call i64 @futex(ptr %done, i64 129, i64 1, ptr null)
  br label %worked
worked:
  %t1 = call i64 @ticks()
  %limit1 = add i64 %t1, %idle_ticks
  br label %look
nothing:
  %f = load atomic i64, ptr %finished acquire, align 8
  %over = icmp ne i64 %f, 0
  br i1 %over, label %exit, label %idle_check
idle_check:
  call void @pause()
  %t2 = call i64 @ticks()
  %late = sub i64 %t2, %limit
  %expired = icmp sgt i64 %late, 0
  br i1 %expired, label %exit, label %idle
idle:
  br label %look
exit:
  ret void
}

; Ask a worker to end; 0 if it is not free now.
define dso_local i64 @stop(ptr %worker) {
  %mailbox = at %worker.Worker.MAILBOX
  %sleeping = at %worker.Worker.SLEEPING
  %swap = cmpxchg ptr %mailbox, i64 0, i64 @STOP seq_cst seq_cst
  %won = extractvalue { i64, i1 } %swap, 1
  br i1 %won, label %wake, label %busy
wake:
  store atomic i64 0, ptr %sleeping seq_cst, align 8
  %ignored = call i64 @futex(ptr %sleeping, i64 129, i64 1, ptr null)
  ret i64 1
busy:
  ret i64 0
}

define dso_local ptr @worker(ptr %me) {
entry:
  %mailbox = at %me.Worker.MAILBOX
  %sleeping = at %me.Worker.SLEEPING
  %thread_id = call i64 @system(i64 @SYS_GETTID, ptr null, i64 0, ptr null, ptr null)
  set %me.Worker.THREAD_ID = %thread_id
  %inherited = call i64 @float_mode()
  br label %rest
rest:
  %spin_ticks = word %me.Worker.SPIN_TICKS
  %t0 = call i64 @ticks()
  %limit = add i64 %t0, %spin_ticks
  br label %spin
spin:
  %m = load atomic i64, ptr %mailbox acquire, align 8
  %none = icmp eq i64 %m, 0
  br i1 %none, label %wait, label %called
called:
  %is_stop = icmp eq i64 %m, @STOP
  br i1 %is_stop, label %stop, label %accept
stop:
  %exited = at %me.Worker.EXITED
  store atomic i64 1, ptr %exited release, align 8
  ret ptr null
wait:
  call void @pause()
  %t1 = call i64 @ticks()
  %late = sub i64 %t1, %limit
  %tired = icmp sgt i64 %late, 0
  br i1 %tired, label %lie_down, label %spin
lie_down:
  store atomic i64 1, ptr %sleeping seq_cst, align 8
  %m2 = load atomic i64, ptr %mailbox seq_cst, align 8
  %still_none = icmp eq i64 %m2, 0
  br i1 %still_none, label %sleep, label %get_up
sleep:
  %ignored = call i64 @futex(ptr %sleeping, i64 128, i64 1, ptr null)
  %m3 = load atomic i64, ptr %mailbox seq_cst, align 8
  %nobody = icmp eq i64 %m3, 0
  %s = load atomic i64, ptr %sleeping seq_cst, align 8
  %asleep = icmp ne i64 %s, 0
  %spurious = and i1 %nobody, %asleep
  br i1 %spurious, label %sleep, label %get_up
get_up:
  store atomic i64 0, ptr %sleeping seq_cst, align 8
  br label %rest
accept:
  %accepted = or i64 %m, 1
  %swap = cmpxchg ptr %mailbox, i64 %m, i64 %accepted seq_cst seq_cst
  %won = extractvalue { i64, i1 } %swap, 1
  br i1 %won, label %serve, label %rest
serve:
  %lane = inttoptr i64 %m to ptr
  %h = pointer %lane.Lane.HEADER
  %events = word %lane.Lane.EVENTS
  %is_timed = icmp ne i64 %events, 0
  br i1 %is_timed, label %serve_timed, label %serve_plain
serve_plain:
  call void @help(ptr %h, ptr %lane)
  br label %leave
serve_timed:
  call void @help_timed(ptr %h, ptr %lane)
  br label %leave
leave:
  %taken = at %lane.Lane.TAKEN
  store atomic i64 0, ptr %taken release, align 8
  store atomic i64 0, ptr %mailbox release, align 8
  br label %rest
}
"""
