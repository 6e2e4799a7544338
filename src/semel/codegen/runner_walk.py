"""The runner's text for one run: walk the steps, call the rows, collect what failed.

run(header) --> code: done, refused, failed, or back to Python for a while
"""

from __future__ import annotations

WALK = """
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
  when %failed
  call void @note_status(ptr %lane, i64 %begin)
  end
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
  %h = pointer %lane.Lane.HEADER
  %failed = at %h.Header.FAILED
  atomic %failed = 1 monotonic
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
  when %keep
  set %lane.Lane.BEST_CODE = %code
  set %lane.Lane.BEST_ROW = %row
  set %lane.Lane.BEST_TILE = %begin
  set %lane.Lane.BEST_VALUE = %value
  end
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
  ; Even shares: with chunks of one size the last would be short and its thread idle.
  ; Participants that take turns each walk a region of their own, where what they fetched
  ; ahead, or wrote in the step before, is in their cache.
  %tiles = word %sg.Segment.TILES
  %turn = sub i64 %chunk, %first_chunk
  %threads = word %h.Header.THREADS
  %region = urem i64 %turn, %threads
  %place = udiv i64 %turn, %threads
  %size = udiv i64 %num_chunks, %threads
  %left_over = urem i64 %num_chunks, %threads
  %start = mul i64 %region, %size
  %moved = add i64 %start, %place
  %is_even = icmp eq i64 %left_over, 0
  %nth = select i1 %is_even, i64 %moved, i64 %turn
  %nth1 = add i64 %nth, 1
  %before = mul i64 %nth, %tiles
  %until = mul i64 %nth1, %tiles
  %begin = udiv i64 %before, %num_chunks
  %end = udiv i64 %until, %num_chunks
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

; Only the timed walk counts.
define internal void @count_step(ptr %h, i64 %index, i64 %shared) alwaysinline {
  ret void
}

; Wait at a row for the value of a signal; false if the run is to come back before: it has been
; asked to, its time is over, or Python should look for signals of the system.
define internal i1 @meet(ptr %h, ptr %row) noinline {
entry:
  call void @dawdle(ptr %h, i64 3)
  %s = pointer %row.Row.FUNCTION
  %values = pointer %row.Row.VALUES
  %value = load i64, ptr %values, align 8
  %bell = at %s.Signal.BELL
  %asking = at %h.Header.ASKED
  %deadline = word %h.Header.DEADLINE
  %until = word %h.Header.UNTIL
  %spin_ticks = word %h.Header.IDLE_TICKS
  %is_soon = call i1 @signal_spin(ptr %s, i64 %value, i64 %spin_ticks)
  br i1 %is_soon, label %met, label %look
look:
  ; The bell first: whoever asks rings it afterwards.
  %seen = atomic %bell seq_cst
  %asked = atomic %asking seq_cst
  %is_wanted = icmp sge i64 %asked, @COME_BACK
  br i1 %is_wanted, label %back, label %clock
clock:
  %now = call i64 @ticks()
  %after = sub i64 %now, %deadline
  %is_slice_over = icmp sgt i64 %after, 0
  %overtime = sub i64 %now, %until
  %is_over = icmp sgt i64 %overtime, 0
  %has_limit = icmp ne i64 %asked, 0
  %is_late = and i1 %is_over, %has_limit
  %goes_back = or i1 %is_slice_over, %is_late
  br i1 %goes_back, label %back, label %sleep
sleep:
  %is_reached = call i1 @signal_sleep(ptr %s, i64 %value, i64 %seen, i64 5000000)
  br i1 %is_reached, label %met, label %look
met:
  ret i1 true
back:
  ret i1 false
}

; Let a signal reach the value of a row; false if it is further already, which is for Python to say.
define internal i1 @tell(ptr %h, ptr %row) noinline {
  call void @dawdle(ptr %h, i64 3)
  %s = pointer %row.Row.FUNCTION
  %values = pointer %row.Row.VALUES
  %value = load i64, ptr %values, align 8
  %before = call i64 @signal_set(ptr %s, i64 %value)
  %is_good = icmp sle i64 %before, %value
  ret i1 %is_good
}

; A row at which something comes from elsewhere, or goes there: late variables, or a signal. It is
; in the step before `next`. OK, or the code to come back with.
define internal i64 @cross(ptr %h, ptr %row, i64 %index, i64 %next) noinline {
  %kind = word %row.Row.KIND
  switch i64 %kind, label %rebind [ i64 @RowKind.WAIT, label %wait
                                    i64 @RowKind.SIGNAL, label %signal ]
rebind:
  %point = pointer %row.Row.FUNCTION
  %code = call i64 @settle(ptr %h, ptr %point, ptr %row)
  ret i64 %code
wait:
  %is_met = call i1 @meet(ptr %h, ptr %row)
  br i1 %is_met, label %done, label %again
signal:
  %is_told = call i1 @tell(ptr %h, ptr %row)
  br i1 %is_told, label %done, label %host
done:
  ret i64 @Code.OK
again:
  set %h.Header.PARKED = %next
  ret i64 @Code.AGAIN
host:
  %behind = add i64 %next, 1
  set %h.Header.PARKED = %behind
  set %h.Header.ERROR_INDEX = %index
  ret i64 @Code.HOST_CALL
}

define internal i64 @walk(ptr %h, i64 %start) noinline {
entry:
  %rows = pointer %h.Header.ROWS
  %steps = pointer %h.Header.STEPS
  %num_steps = word %h.Header.NUM_STEPS
  %lane = pointer %h.Header.LANES
  %deadline = word %h.Header.DEADLINE
  %asking = at %h.Header.ASKED
  br label %head
head:
  %i = phi i64 [ %start, %entry ], [ %to, %next ]
  %left = icmp slt i64 %i, %num_steps
  br i1 %left, label %step, label %finished
step:
  %asked = atomic %asking monotonic
  %i1 = add i64 %i, 1
  %is_asked = icmp ne i64 %asked, 0
  br i1 %is_asked, label %limited, label %begin
limited:
  %is_wanted = icmp sge i64 %asked, @COME_BACK
  br i1 %is_wanted, label %stopped, label %look
look:
  %until = word %h.Header.UNTIL
  %time = call i64 @ticks()
  %overtime = sub i64 %time, %until
  %is_over = icmp sgt i64 %overtime, 0
  br i1 %is_over, label %stopped, label %begin
stopped:
  set %h.Header.PARKED = %i1
  ret i64 @Code.AGAIN
begin:
  %word = shl i64 %i, 3
  %st = getelementptr i64, ptr %steps, i64 %word
  %shared = word %st.Step.SHARED
  %is_shared = icmp ne i64 %shared, 0
  br i1 %is_shared, label %large, label %small
small:
  call void @count_step(ptr %h, i64 %i, i64 0)
  %first_row = word %st.Step.FIRST_ROW
  %kind = word %st.Step.KIND
  %is_plain = icmp eq i64 %kind, @RowKind.KERNEL
  br i1 %is_plain, label %small_rows, label %special
special:
  %is_host = icmp eq i64 %kind, @RowKind.HOST_CALL
  br i1 %is_host, label %host, label %control
control:
  ; What a failed check left behind decides nothing: the run ends, and the failure is reported.
  %failed = word %h.Header.FAILED
  %is_clean = icmp eq i64 %failed, 0
  br i1 %is_clean, label %decide, label %finished
decide:
  %control_word = shl i64 %first_row, 3
  %control_row = getelementptr i64, ptr %rows, i64 %control_word
  %target = word %control_row.Row.TARGET
  %pt = pointer %control_row.Row.FUNCTION
  %trip = word %control_row.Row.TILES
  %where = pointer %control_row.Row.BUFFERS
  %is_end = icmp eq i64 %kind, @RowKind.END
  br i1 %is_end, label %back, label %other
other:
  switch i64 %kind, label %next [ i64 @RowKind.LOOP, label %enter
                                  i64 @RowKind.BRANCH, label %branch
                                  i64 @RowKind.REBIND, label %across
                                  i64 @RowKind.WAIT, label %across
                                  i64 @RowKind.SIGNAL, label %across ]
enter:
  %is_some = icmp sgt i64 %trip, 0
  br i1 %is_some, label %first_time, label %skip
skip:
  %after = word %pt.Point.AFTER
  br label %next
first_time:
  call void @advance(ptr %h, ptr %pt, i64 0)
  br label %next
back:
  %counter = pointer %pt.Point.COUNTER
  %was = load i64, ptr %counter, align 8
  %count = add i64 %was, 1
  %has_more = icmp slt i64 %count, %trip
  br i1 %has_more, label %iterate, label %next
iterate:
  call void @advance(ptr %h, ptr %pt, i64 %count)
  ; One thread runs large steps as small ones: only the clock says how long an iteration took.
  %body = word %pt.Point.BODY
  br label %clock
branch:
  %condition = load ptr, ptr %where, align 8
  %byte = load i8, ptr %condition, align 1
  %is_false = icmp eq i8 %byte, 0
  %chosen = select i1 %is_false, i64 %target, i64 %i1
  br label %next
across:
  %settled = call i64 @cross(ptr %h, ptr %control_row, i64 %first_row, i64 %i1)
  %is_settled = icmp eq i64 %settled, 0
  br i1 %is_settled, label %next, label %refused
refused:
  ret i64 %settled
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
  br i1 %ok, label %large_done, label %unready
large_done:
  call void @count_step(ptr %h, i64 %i, i64 1)
  br label %clock
clock:
  %later = phi i64 [ %i1, %small_done ], [ %i1, %large_done ], [ %body, %iterate ]
  %now = call i64 @ticks()
  %late = sub i64 %now, %deadline
  %is_late = icmp sgt i64 %late, 0
  %is_last = icmp sge i64 %later, %num_steps
  %on_time = xor i1 %is_late, true
  %go_on = or i1 %on_time, %is_last
  br i1 %go_on, label %next, label %again
next:
  %to = phi i64 [ %i1, %small_done ], [ %later, %clock ], [ %after, %skip ],
                [ %i1, %first_time ], [ %i1, %back ], [ %target, %other ],
                [ %chosen, %branch ], [ %i1, %across ]
  br label %head
again:
  %again_at = add i64 %later, 1
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

EVENTS = """
define internal void @count_step_timed(ptr %h, i64 %index, i64 %shared) alwaysinline {
  %counts = pointer %h.Header.STEP_RUNS
  %word = shl i64 %index, 1
  %at_runs = getelementptr i64, ptr %counts, i64 %word
  %runs = load i64, ptr %at_runs, align 8
  %runs1 = add i64 %runs, 1
  store i64 %runs1, ptr %at_runs, align 8
  %at_shared = getelementptr i64, ptr %at_runs, i64 1
  %times = load i64, ptr %at_shared, align 8
  %times1 = add i64 %times, %shared
  store i64 %times1, ptr %at_shared, align 8
  ret void
}

define internal void @call_row_timed(ptr %row, i64 %index, ptr %lane, i64 %begin, i64 %end)
    alwaysinline {
  %start = call i64 @ticks()
  call void @call_row(ptr %row, i64 %index, ptr %lane, i64 %begin, i64 %end)
  %stop = call i64 @ticks()
  %tiles = sub i64 %end, %begin
  call void @note_event(ptr %lane, i64 %index, i64 %start, i64 %stop, i64 %tiles)
  ret void
}

; What comes from elsewhere, or goes there, takes as long as it is waited for.
define internal i64 @cross_timed(ptr %h, ptr %row, i64 %index, i64 %next) noinline {
  %start = call i64 @ticks()
  %code = call i64 @cross(ptr %h, ptr %row, i64 %index, i64 %next)
  %stop = call i64 @ticks()
  %lane = pointer %h.Header.LANES
  %kind = word %row.Row.KIND
  %is_rebind = icmp eq i64 %kind, @RowKind.REBIND
  unless %is_rebind
  call void @note_event(ptr %lane, i64 %index, i64 %start, i64 %stop, i64 1)
  end
  ret i64 %code
}

define internal void @note_event(ptr %lane, i64 %index, i64 %start, i64 %stop, i64 %tiles) {
  %count = word %lane.Lane.NUM_EVENTS
  %room = word %lane.Lane.MAX_EVENTS
  %next = add i64 %count, 1
  set %lane.Lane.NUM_EVENTS = %next
  %fits = icmp slt i64 %count, %room
  when %fits
  %events = pointer %lane.Lane.EVENTS
  %offset = mul i64 %count, @EVENT_WORDS
  %event = getelementptr i64, ptr %events, i64 %offset
  set %event.Event.ROW = %index
  set %event.Event.START = %start
  set %event.Event.END = %stop
  set %event.Event.TILES = %tiles
  end
  ret void
}
"""

RUN = """
define internal i64 @run(ptr %h) {
  %was = call i64 @float_mode()
  %code = call i64 @run_plan(ptr %h)
  %changed = icmp sge i64 %was, 0
  when %changed
  call void @restore_float_mode(i64 %was)
  end
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
  %won = swap %busy, 0, 1 acquire monotonic
  br i1 %won, label %mine, label %taken
taken:
  ret i64 @Code.BUSY
mine:
  ; What somebody wanted of an earlier run is over with it.
  %limit = word %h.Header.UNTIL
  %has_limit = icmp ne i64 %limit, 0
  %asked = select i1 %has_limit, i64 @HAS_LIMIT, i64 0
  %asking = at %h.Header.ASKED
  atomic %asking = %asked monotonic
  %dirty = word %h.Header.DIRTY
  %is_dirty = icmp ne i64 %dirty, 0
  br i1 %is_dirty, label %bind, label %ready
bind:
  %bound = call i64 @rebind(ptr %h)
  %bind_ok = icmp eq i64 %bound, 0
  br i1 %bind_ok, label %ready, label %refused
refused:
  atomic %busy = 0 release
  ret i64 %bound
ready:
  set %h.Header.VALID = 0
  set %h.Header.FAILED = 0
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
  atomic %finished_flag = 0 monotonic
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
  switch i64 %code, label %parked [ i64 @Code.OK, label %collect
                                    i64 @Code.VARIABLE, label %leave
                                    i64 @Code.GUARD, label %leave ]
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
  %has_commit = word %h.Header.HAS_COMMIT
  %is_kept = icmp ne i64 %has_commit, 0
  br i1 %is_kept, label %commit, label %leave
commit:
  call void @commit(ptr %h)
  br label %leave
failure:
  br label %leave
leave:
  %result = phi i64 [ @Code.OK, %success ], [ @Code.OK, %commit ], [ @Code.STATUS, %failure ],
                    [ %code, %ended ], [ %code, %ended ]
  %busy2 = at %h.Header.BUSY
  atomic %busy2 = 0 release
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
