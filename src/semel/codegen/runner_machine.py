"""The runner's text for one machine: pause, clock, system calls, floating-point mode.

architecture --> LLVM IR text that the other parts of the runner call
"""

from __future__ import annotations

SYSTEM_CALLS = {
    "x86_64": {
        "FUTEX": 202,
        "GETTID": 186,
        "GETCPU": 309,
        "SET_AFFINITY": 203,
        "GET_AFFINITY": 204,
    },
    "aarch64": {
        "FUTEX": 98,
        "GETTID": 178,
        "GETCPU": 168,
        "SET_AFFINITY": 122,
        "GET_AFFINITY": 123,
    },
}

# What the architectures do differently: a pause, a clock, a system call, and the
# floating-point mode. `float_mode` sets the default (round to nearest, subnormals kept) and
# returns what was there, or -1 if nothing had to change; `restore_float_mode` takes that.
# LLVM brings the assembler of the machine it runs on alone: AArch64 does without, so that its
# runner can be compiled anywhere.
MACHINE = {
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
declare void @llvm.aarch64.hint(i32)
declare i64 @llvm.read_volatile_register.i64(metadata)
declare i64 @llvm.aarch64.get.fpcr()
declare void @llvm.aarch64.set.fpcr(i64)

define internal void @pause() alwaysinline {
  call void @llvm.aarch64.hint(i32 1)
  ret void
}
define dso_local i64 @ticks() {
  %now = call i64 @llvm.read_volatile_register.i64(metadata !0)
  ret i64 %now
}
!0 = !{!"cntvct_el0"}

; i64 @system(i64 %number, ptr %a, i64 %b, ptr %c, ptr %d): move x0 to x8 and the others down by
; one, svc #0, ret. Constants lie among the code.
@system = internal constant [7 x i32] [
  i32 u0xaa0003e8, i32 u0xaa0103e0, i32 u0xaa0203e1, i32 u0xaa0303e2, i32 u0xaa0403e3,
  i32 u0xd4000001, i32 u0xd65f03c0 ], align 4

define internal i64 @float_mode() noinline {
  %old = call i64 @llvm.aarch64.get.fpcr()
  %plain = icmp eq i64 %old, 0
  br i1 %plain, label %same, label %change
same:
  ret i64 -1
change:
  call void @llvm.aarch64.set.fpcr(i64 0)
  ret i64 %old
}
define internal void @restore_float_mode(i64 %was) noinline {
  call void @llvm.aarch64.set.fpcr(i64 %was)
  ret void
}
""",
}  # fmt: skip

# A worker may run where the thread that it works for may run, asked anew each time, so that a
# `taskset` is followed, and where that thread is not: the operating system likes to wake a thread
# on the CPU of the one that wakes it, above all in a virtual machine, where idle CPUs do not look
# idle, and the two then share that CPU for milliseconds. A caller with one CPU shares it. A worker
# of a part of the machine has a mask of its own, and runs on no other CPUs whoever the caller is.
SYSTEM = """
declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)
declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)

define internal i64 @futex(ptr %word, i64 %op, i64 %value, ptr %timeout) noinline {
  %number = inttoptr i64 %value to ptr
  %r = call i64 @system(i64 @SYS_FUTEX, ptr %word, i64 %op, ptr %number, ptr %timeout)
  ret i64 %r
}

define internal void @place(ptr %worker, i64 %now) noinline {
  %thread = pointer %worker.Worker.THREAD_ID
  %has_started = icmp ne ptr %thread, null
  when %has_started
  set %worker.Worker.PLACED_AT = %now
  %own = pointer %worker.Worker.CPUS
  call void @place_thread(ptr %thread, ptr %own)
  end
  ret void
}

; A thread, by the system's number, may run wherever this one may.
define internal void @free_thread(ptr %thread) noinline {
  %mask = alloca [@MASK_BYTES x i8], align 8
  call void @llvm.memset.p0.i64(ptr %mask, i8 0, i64 @MASK_BYTES, i1 false)
  %written = call i64 @system(i64 @SYS_GET_AFFINITY, ptr null, i64 @MASK_BYTES,
                              ptr %mask, ptr null)
  %has_mask = icmp sgt i64 %written, 0
  when %has_mask
  %freed = call i64 @system(i64 @SYS_SET_AFFINITY, ptr %thread, i64 @MASK_BYTES,
                            ptr %mask, ptr null)
  end
  ret void
}

; A thread, by the system's number, may run where this one may, or on CPUs of its own, and not where
; this one is.
define internal void @place_thread(ptr %thread, ptr %own) noinline {
  %mask = alloca [@MASK_BYTES x i8], align 8
  %cpu = alloca i64, align 8
  store i64 0, ptr %cpu, align 8
  %is_bound = icmp ne ptr %own, null
  br i1 %is_bound, label %bound, label %follow
bound:
  call void @llvm.memcpy.p0.p0.i64(ptr %mask, ptr %own, i64 @MASK_BYTES, i1 false)
  br label %masked
follow:
  call void @llvm.memset.p0.i64(ptr %mask, i8 0, i64 @MASK_BYTES, i1 false)
  %written = call i64 @system(i64 @SYS_GET_AFFINITY, ptr null, i64 @MASK_BYTES,
                              ptr %mask, ptr null)
  %is_written = icmp sgt i64 %written, 0
  br label %masked
masked:
  %has_mask = phi i1 [ true, %bound ], [ %is_written, %follow ]
  %ignored = call i64 @system(i64 @SYS_GETCPU, ptr %cpu, i64 0, ptr null, ptr null)
  %here = load i64, ptr %cpu, align 8
  %fits = icmp ult i64 %here, @MASK_BITS
  %known = and i1 %has_mask, %fits
  br i1 %known, label %move, label %exit
move:
  %byte_index = lshr i64 %here, 3
  %byte_at = getelementptr i8, ptr %mask, i64 %byte_index
  %byte = load i8, ptr %byte_at, align 1
  %here8 = trunc i64 %here to i8
  %bit_index = and i8 %here8, 7
  %bit = shl i8 1, %bit_index
  %others = xor i8 %bit, -1
  %left = and i8 %byte, %others
  store i8 %left, ptr %byte_at, align 1
  %moved = call i64 @system(i64 @SYS_SET_AFFINITY, ptr %thread, i64 @MASK_BYTES,
                            ptr %mask, ptr null)
  %refused = icmp slt i64 %moved, 0
  br i1 %refused, label %together, label %exit
together:
  store i8 %byte, ptr %byte_at, align 1
  %last = call i64 @system(i64 @SYS_SET_AFFINITY, ptr %thread, i64 @MASK_BYTES,
                           ptr %mask, ptr null)
  br label %exit
exit:
  ret void
}
"""
