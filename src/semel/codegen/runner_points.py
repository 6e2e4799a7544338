"""The runner's text for the points of a run: what changes at an iteration and at a rebind.

    a counter or late variables --> registers, the words that hold them, chunks

Nothing is published meanwhile: the caller stands between two steps.
"""

from __future__ import annotations

POINTS = """
; What depends on the variables of a point: registers, words, chunks.
define internal void @renew(ptr %h, ptr %pt, i64 %first) {
  %last = word %pt.Point.LAST_INSTRUCTION
  call void @evaluate(ptr %h, i64 %first, i64 %last)
  %regs = pointer %h.Header.REGISTERS
  %pairs = pointer %pt.Point.SCATTER
  %num_pairs = word %pt.Point.NUM_SCATTER
  call void @scatter(ptr %regs, ptr %pairs, i64 %num_pairs)
  %num_cuts = word %pt.Point.NUM_CUTS
  %is_cut = icmp ne i64 %num_cuts, 0
  when %is_cut
  call void @cut_again(ptr %h, ptr %pt)
  end
  ret void
}

; The start of an iteration: its number, and what depends on it.
define internal void @advance(ptr %h, ptr %pt, i64 %count) {
  %counter = pointer %pt.Point.COUNTER
  store i64 %count, ptr %counter, align 8
  %first = word %pt.Point.FIRST_INSTRUCTION
  call void @renew(ptr %h, ptr %pt, i64 %first)
  ret void
}

; A rebind: read the late variables, check them and its guards, then renew.
define internal i64 @settle(ptr %h, ptr %pt, ptr %row) noinline {
entry:
  %attempt = word %h.Header.ATTEMPTS
  set %pt.Point.ATTEMPT = %attempt
  %regs = pointer %h.Header.REGISTERS
  %sources = pointer %row.Row.BUFFERS
  %late = pointer %pt.Point.LATE
  %n = word %pt.Point.NUM_LATE
  each %i from 0 to %n
  %psource = getelementptr ptr, ptr %sources, i64 %i
  %source = load ptr, ptr %psource, align 8
  %v = load i64, ptr %source, align 8
  %i3 = mul i64 %i, 3
  %pnumber = getelementptr i64, ptr %late, i64 %i3
  %number = load i64, ptr %pnumber, align 8
  %pmin = getelementptr i64, ptr %pnumber, i64 1
  %vmin = load i64, ptr %pmin, align 8
  %pmax = getelementptr i64, ptr %pnumber, i64 2
  %vmax = load i64, ptr %pmax, align 8
  %rv = getelementptr i64, ptr %regs, i64 %number
  store i64 %v, ptr %rv, align 8
  %over = icmp sge i64 %v, %vmin
  %under = icmp sle i64 %v, %vmax
  %inside = and i1 %over, %under
  unless %inside
  set %h.Header.ERROR_INDEX = %number
  ret i64 @Code.VARIABLE
  end
  next %i
  %first = word %pt.Point.FIRST_INSTRUCTION
  %checked = word %pt.Point.CHECKED_INSTRUCTION
  call void @evaluate(ptr %h, i64 %first, i64 %checked)
  %guards = pointer %pt.Point.GUARDS
  %num_guards = word %pt.Point.NUM_GUARDS
  %broken = call i64 @broken_guard(ptr %regs, ptr %guards, i64 %num_guards)
  %sound = icmp slt i64 %broken, 0
  unless %sound
  set %h.Header.ERROR_INDEX = %broken
  ret i64 @Code.GUARD
  end
  call void @renew(ptr %h, ptr %pt, i64 %checked)
  ret i64 @Code.OK
}
"""

# Chunks: ~20 us of estimated work each, at most 4 per participant; the chunks of a chain
# of rows stay at 20 us, so that what one row wrote is still in the cache for the next.
CHUNKS = """
; Cut one step; its work if it is worth sharing, else 0.
define internal i64 @cut_step(ptr %h, ptr %st) noinline {
entry:
  %rows = pointer %h.Header.ROWS
  %segments = pointer %h.Header.SEGMENTS
  %threads = word %h.Header.THREADS
  %most = shl i64 %threads, 2
  %first_seg = word %st.Step.FIRST_SEGMENT
  %num_seg = word %st.Step.NUM_SEGMENTS
  %end_seg = add i64 %first_seg, %num_seg
  br label %seg_head
seg_head:
  %j = phi i64 [ %first_seg, %entry ], [ %j1, %seg_done ]
  %chunks = phi i64 [ 0, %entry ], [ %chunks1, %seg_done ]
  %work = phi i64 [ 0, %entry ], [ %work1, %seg_done ]
  %segs_left = icmp slt i64 %j, %end_seg
  br i1 %segs_left, label %seg, label %done
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
  br label %seg_done
seg_chunk:
  %wanted = sdiv i64 %sum, @LARGE_NS
  %is_chain = icmp sgt i64 %num_rows, 1
  %limit = select i1 %is_chain, i64 %tiles, i64 %most
  %over = icmp sgt i64 %wanted, %limit
  %w1 = select i1 %over, i64 %limit, i64 %wanted
  %few = icmp slt i64 %w1, 1
  %w2 = select i1 %few, i64 1, i64 %w1
  %lacks = icmp slt i64 %tiles, %w2
  %w3 = select i1 %lacks, i64 %tiles, i64 %w2
  ; As many for every participant, if there are enough: each has a region of its own then.
  %odd = urem i64 %w3, %threads
  %w4 = sub i64 %w3, %odd
  %none = icmp eq i64 %w4, 0
  %count = select i1 %none, i64 %w3, i64 %w4
  br label %seg_done
seg_done:
  %num_chunks = phi i64 [ 0, %seg_size ], [ 1, %seg_whole ], [ %count, %seg_chunk ]
  set %sg.Segment.NUM_CHUNKS = %num_chunks
  %chunks1 = add i64 %chunks, %num_chunks
  %j1 = add i64 %j, 1
  br label %seg_head
done:
  set %st.Step.NUM_CHUNKS = %chunks
  set %st.Step.WORK_NS = %work
  %enough = icmp sge i64 %work, @LARGE_NS
  %several = icmp sgt i64 %chunks, 1
  %shared = and i1 %enough, %several
  %shared64 = zext i1 %shared to i64
  set %st.Step.SHARED = %shared64
  %share = select i1 %shared, i64 %work, i64 0
  ret i64 %share
}

; All steps, at a bind.
define internal void @size_chunks(ptr %h) noinline {
entry:
  %rows = pointer %h.Header.ROWS
  %steps = pointer %h.Header.STEPS
  %num_steps = word %h.Header.NUM_STEPS
  br label %head
head:
  %i = phi i64 [ 0, %entry ], [ %i1, %counted ]
  %large = phi i64 [ 0, %entry ], [ %large1, %counted ]
  %times = phi i64 [ 1, %entry ], [ %times1, %counted ]
  %left = icmp slt i64 %i, %num_steps
  br i1 %left, label %step, label %exit
step:
  %step_word = shl i64 %i, 3
  %st = getelementptr i64, ptr %steps, i64 %step_word
  %share = call i64 @cut_step(ptr %h, ptr %st)
  %shares = mul i64 %share, %times
  %large1 = add i64 %large, %shares
  ; The steps of a loop are there as often as it is run.
  %kind = word %st.Step.KIND
  %first_row = word %st.Step.FIRST_ROW
  %row_word = shl i64 %first_row, 3
  %row = getelementptr i64, ptr %rows, i64 %row_word
  %pt = pointer %row.Row.FUNCTION
  switch i64 %kind, label %counted [ i64 @RowKind.LOOP, label %into
                                     i64 @RowKind.END, label %out ]
into:
  set %pt.Point.TIMES = %times
  %trip = word %row.Row.TILES
  %is_some = icmp sgt i64 %trip, 0
  %trip0 = select i1 %is_some, i64 %trip, i64 0
  %is_often = icmp sgt i64 %trip0, @MANY_TIMES
  %trip1 = select i1 %is_often, i64 @MANY_TIMES, i64 %trip0
  %product = mul i64 %times, %trip1
  %is_more = icmp sgt i64 %product, @MANY_TIMES
  %inside = select i1 %is_more, i64 @MANY_TIMES, i64 %product
  br label %counted
out:
  %outside = word %pt.Point.TIMES
  br label %counted
counted:
  %times1 = phi i64 [ %times, %step ], [ %inside, %into ], [ %outside, %out ]
  %i1 = add i64 %i, 1
  br label %head
exit:
  set %h.Header.LARGE_WORK = %large
  ret void
}

; The steps whose tiles or work depend on a point, when it is reached.
define internal void @cut_again(ptr %h, ptr %pt) noinline {
entry:
  %steps = pointer %h.Header.STEPS
  %cuts = pointer %pt.Point.CUTS
  %num_cuts = word %pt.Point.NUM_CUTS
  br label %head
head:
  %i = phi i64 [ 0, %entry ], [ %i1, %one ]
  %large = phi i64 [ 0, %entry ], [ %large1, %one ]
  %left = icmp slt i64 %i, %num_cuts
  br i1 %left, label %one, label %exit
one:
  %pc = getelementptr i64, ptr %cuts, i64 %i
  %index = load i64, ptr %pc, align 8
  %step_word = shl i64 %index, 3
  %st = getelementptr i64, ptr %steps, i64 %step_word
  %share = call i64 @cut_step(ptr %h, ptr %st)
  %large1 = add i64 %large, %share
  %i1 = add i64 %i, 1
  br label %head
exit:
  ; The bind could not know of this work, and a sleeping worker is woken for enough of it.
  %known = word %h.Header.LARGE_WORK
  %is_more = icmp sgt i64 %large, %known
  %most = select i1 %is_more, i64 %large, i64 %known
  set %h.Header.LARGE_WORK = %most
  ret void
}
"""
