"""The runner's text for binding: move bases, check pending values, commit them, size the chunks.

    bases that moved --rebind--> addresses in the rows
    pending variables --rebind--> tile counts, kernel arguments, chunks

No variable changes before everything is checked; where memory lies depends on none of them.
"""

from __future__ import annotations

# Check the pending values, then commit them: variables, dependent words, chunk sizes.
REBIND = """
define internal void @evaluate(ptr %h, i64 %first, i64 %last) {
entry:
  %program = pointer %h.Header.PROGRAM
  %regs = pointer %h.Header.REGISTERS
  each %i from %first to %last
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
  next %i
  ret void
}

define internal void @scatter(ptr %regs, ptr %pairs, i64 %count) {
entry:
  each %s from 0 to %count
  %s2 = shl i64 %s, 1
  %ps = getelementptr i64, ptr %pairs, i64 %s2
  %si = load i64, ptr %ps, align 8
  %pdest = getelementptr i64, ptr %ps, i64 1
  %dest = load ptr, ptr %pdest, align 8
  %rs = getelementptr i64, ptr %regs, i64 %si
  %sv = load i64, ptr %rs, align 8
  store i64 %sv, ptr %dest, align 8
  next %s
  ret void
}

; The number of the first guard that does not hold, or -1.
define internal i64 @broken_guard(ptr %regs, ptr %guards, i64 %count) {
entry:
  each %g from 0 to %count
  %g2 = shl i64 %g, 1
  %pg = getelementptr i64, ptr %guards, i64 %g2
  %gi = load i64, ptr %pg, align 8
  %rg = getelementptr i64, ptr %regs, i64 %gi
  %gv = load i64, ptr %rg, align 8
  %holds = icmp eq i64 %gv, 0
  unless %holds
  %pn = getelementptr i64, ptr %pg, i64 1
  %number = load i64, ptr %pn, align 8
  ret i64 %number
  end
  next %g
  ret i64 -1
}

; Write the addresses of bases that moved, and of no others.
define internal void @move_bases(ptr %h) noinline {
entry:
  set %h.Header.MOVED = 0
  %bases = pointer %h.Header.BASES
  %n = word %h.Header.NUM_BASES
  each %k from 0 to %n
  %at = mul i64 %k, @BASE_WORDS
  %base = getelementptr i64, ptr %bases, i64 %at
  %has_moved = word %base.Base.HAS_MOVED
  %is_moved = icmp ne i64 %has_moved, 0
  when %is_moved
  set %base.Base.HAS_MOVED = 0
  %address = word %base.Base.ADDRESS
  %pairs = pointer %base.Base.WORDS
  %count = word %base.Base.NUM_WORDS
  each %i from 0 to %count
  %i2 = shl i64 %i, 1
  %pword = getelementptr i64, ptr %pairs, i64 %i2
  %word = load ptr, ptr %pword, align 8
  %poffset = getelementptr i64, ptr %pword, i64 1
  %offset = load i64, ptr %poffset, align 8
  %value = add i64 %address, %offset
  store i64 %value, ptr %word, align 8
  next %i
  end
  next %k
  ret void
}

define internal i64 @rebind(ptr %h) noinline {
entry:
  %moved = word %h.Header.MOVED
  %has_moved = icmp ne i64 %moved, 0
  br i1 %has_moved, label %move, label %start
move:
  call void @move_bases(ptr %h)
  %dirty = word %h.Header.DIRTY
  %is_all = icmp eq i64 %dirty, @ONLY_MOVED
  br i1 %is_all, label %placed, label %start
placed:
  set %h.Header.DIRTY = 0
  ret i64 @Code.OK
start:
  %regs = pointer %h.Header.REGISTERS
  %pending = pointer %h.Header.PENDING
  %current = pointer %h.Header.VARIABLES
  %bounds = pointer %h.Header.BOUNDS
  %n = word %h.Header.NUM_VARIABLES
  each %i from 0 to %n
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
  unless %inside
  set %h.Header.ERROR_INDEX = %i
  ret i64 @Code.VARIABLE
  end
  %rv = getelementptr i64, ptr %regs, i64 %i
  store i64 %v, ptr %rv, align 8
  next %i
  %num_checked = word %h.Header.NUM_CHECKED
  call void @evaluate(ptr %h, i64 0, i64 %num_checked)
  %guards = pointer %h.Header.GUARDS
  %num_guards = word %h.Header.NUM_GUARDS
  %broken = call i64 @broken_guard(ptr %regs, ptr %guards, i64 %num_guards)
  %sound = icmp slt i64 %broken, 0
  unless %sound
  set %h.Header.ERROR_INDEX = %broken
  ret i64 @Code.GUARD
  end
  %checks = pointer %h.Header.CHECKS
  %num_checks = word %h.Header.NUM_CHECKS
  each %c from 0 to %num_checks
  %c2 = shl i64 %c, 1
  %pc = getelementptr i64, ptr %checks, i64 %c2
  %ci = load i64, ptr %pc, align 8
  %pw = getelementptr i64, ptr %pc, i64 1
  %recorded = load ptr, ptr %pw, align 8
  %was = load i64, ptr %recorded, align 8
  %rc = getelementptr i64, ptr %regs, i64 %ci
  %is = load i64, ptr %rc, align 8
  %same = icmp eq i64 %was, %is
  unless %same
  set %h.Header.ERROR_INDEX = %c
  ret i64 @Code.INPUT
  end
  next %c
  each %k from 0 to %n
  %from = getelementptr i64, ptr %pending, i64 %k
  %value = load i64, ptr %from, align 8
  %to = getelementptr i64, ptr %current, i64 %k
  ; Outputs are those of the variables before: if no run follows, they cannot be read any more.
  %known = load i64, ptr %to, align 8
  %kept = icmp eq i64 %known, %value
  %valid = word %h.Header.VALID
  %still = select i1 %kept, i64 %valid, i64 0
  set %h.Header.VALID = %still
  store i64 %value, ptr %to, align 8
  next %k
  %num_ins = word %h.Header.NUM_INSTRUCTIONS
  call void @evaluate(ptr %h, i64 %num_checked, i64 %num_ins)
  %scatter = pointer %h.Header.SCATTER
  %num_scatter = word %h.Header.NUM_SCATTER
  call void @scatter(ptr %regs, ptr %scatter, i64 %num_scatter)
  set %h.Header.DIRTY = 0
  %threads = word %h.Header.THREADS
  %alone = icmp sle i64 %threads, 1
  unless %alone
  call void @size_chunks(ptr %h)
  end
  ret i64 @Code.OK
}
"""

# Bind without running: a profiled run must know its number of chunks before it starts.
BIND = """
define dso_local i64 @bind(ptr %h) {
entry:
  %released = icmp eq ptr %h, null
  br i1 %released, label %gone, label %alive
gone:
  ret i64 @Code.RELEASED
alive:
  %busy = at %h.Header.BUSY
  %won = swap %busy, 0, 1 acquire monotonic
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
  atomic %busy = 0 release
  ret i64 %code
}
"""

# What a run that succeeded leaves to the next: cursors go on, the halves of a double buffer
# change places. Both are pending until that run begins, and go through its checks.
COMMIT = """
define internal void @commit(ptr %h) noinline {
entry:
  %regs = pointer %h.Header.REGISTERS
  %pending = pointer %h.Header.PENDING
  %held = pointer %h.Header.HELD
  %num_held = word %h.Header.NUM_HELD
  each %i from 0 to %num_held
  %i2 = shl i64 %i, 1
  %pr = getelementptr i64, ptr %held, i64 %i2
  %register = load i64, ptr %pr, align 8
  %pv = getelementptr i64, ptr %pr, i64 1
  %variable = load i64, ptr %pv, align 8
  %from = getelementptr i64, ptr %regs, i64 %register
  %value = load i64, ptr %from, align 8
  %to = getelementptr i64, ptr %pending, i64 %variable
  store i64 %value, ptr %to, align 8
  set %h.Header.DIRTY = 1
  next %i
  %bases = pointer %h.Header.BASES
  %flips = pointer %h.Header.FLIPS
  %num_flips = word %h.Header.NUM_FLIPS
  %flips_any = icmp ne i64 %num_flips, 0
  br i1 %flips_any, label %mark, label %exit
mark:
  set %h.Header.MOVED = 1
  %dirty = word %h.Header.DIRTY
  %is_clean = icmp eq i64 %dirty, 0
  %dirty1 = select i1 %is_clean, i64 @ONLY_MOVED, i64 %dirty
  set %h.Header.DIRTY = %dirty1
  br label %flip
flip:
  %k = phi i64 [ 0, %mark ], [ %k1, %flip ]
  %k2 = shl i64 %k, 1
  %pa = getelementptr i64, ptr %flips, i64 %k2
  %na = load i64, ptr %pa, align 8
  %pb = getelementptr i64, ptr %pa, i64 1
  %nb = load i64, ptr %pb, align 8
  %at_a = mul i64 %na, @BASE_WORDS
  %at_b = mul i64 %nb, @BASE_WORDS
  %a = getelementptr i64, ptr %bases, i64 %at_a
  %b = getelementptr i64, ptr %bases, i64 %at_b
  %address_a = word %a.Base.ADDRESS
  %address_b = word %b.Base.ADDRESS
  set %a.Base.ADDRESS = %address_b
  set %b.Base.ADDRESS = %address_a
  set %a.Base.HAS_MOVED = 1
  set %b.Base.HAS_MOVED = 1
  %k1 = add i64 %k, 1
  %flips_left = icmp slt i64 %k1, %num_flips
  br i1 %flips_left, label %flip, label %exit
exit:
  ret void
}
"""
