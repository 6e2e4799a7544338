"""The runner's text for sharing a step: publish, claim chunks, wait, recruit; the worker loop.

    a large step --> chunks that the caller and whatever workers come take by compare-and-swap

If nobody comes the caller does everything; if somebody is late it waits once, then goes on
alone for a while.
"""

from __future__ import annotations

SHARE = """
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
  atomic %done = 0 monotonic
  ; Release: whoever sees one of these sees also that the claim before it is over.
  %published = at %h.Header.PUBLISHED
  atomic %published = %index release
  %published_chunks = at %h.Header.PUBLISHED_CHUNKS
  atomic %published_chunks = %chunks release
  %last_epoch = word %h.Header.EPOCH
  %next_epoch = add i64 %last_epoch, 1
  %epoch = and i64 %next_epoch, 2147483647
  set %h.Header.EPOCH = %epoch
  %open = shl i64 %epoch, 32
  atomic %claim = %open seq_cst
  %begin = call i64 @ticks()
  call void @recruit(ptr %h, i64 %begin)
  br label %take
take:
  ; The caller counts its own chunks for itself: DONE is a line that workers write.
  %others = phi i64 [ %chunks, %publish ], [ %others1, %work ]
  %mine = call i64 @take_chunk(ptr %h, i64 %chunks)
  %got = icmp sge i64 %mine, 0
  br i1 %got, label %work, label %wait
work:
  call void @dawdle(ptr %h, i64 0)
  call void @run_chunk(ptr %h, ptr %st, i64 %mine, ptr %lane)
  %others1 = sub i64 %others, 1
  br label %take
wait:
  call void @wait_done(ptr %h, i64 %others, i64 %begin)
  atomic %claim = @NO_CLAIM release
  br label %exit
exit:
  ret i64 @Code.OK
}

; With JITTER, wait for a random time, so that participants meet in every order. One in four
; times it is longer by so many bits: a worker that is late by several steps.
define internal void @dawdle(ptr %h, i64 %reach) noinline {
  %jitter = word %h.Header.JITTER
  %has_jitter = icmp ne i64 %jitter, 0
  br i1 %has_jitter, label %draw, label %exit
draw:
  %noise = call i64 @ticks()
  %mixed = mul i64 %noise, 6364136223846793005
  %draw1 = lshr i64 %mixed, 50
  %turns1 = lshr i64 %draw1, 2
  %lot = and i64 %draw1, 3
  %is_far = icmp eq i64 %lot, 0
  %bits = select i1 %is_far, i64 %reach, i64 0
  %turns = shl i64 %turns1, %bits
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
define internal i64 @take_chunk(ptr %h, i64 %chunks) alwaysinline {
  %claim = at %h.Header.CLAIM
  %ticket = atomic %claim acquire
  br label %retry
retry:
  %word = phi i64 [ %ticket, %0 ], [ %seen, %try ]
  %next = and i64 %word, 4294967295
  %left = icmp slt i64 %next, %chunks
  br i1 %left, label %try, label %none
try:
  %word1 = add i64 %word, 1
  %won, %seen = swap %claim, %word, %word1 seq_cst seq_cst
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
  %d = atomic %done acquire
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
  atomic %waiting = 1 seq_cst
  br label %sleep
sleep:
  %d2 = atomic %done seq_cst
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
  atomic %waiting = 0 seq_cst
  br label %exit
exit:
  ret void
}

; Offer the plan's free lanes to free workers; wake sleepers only for enough work. A worker is
; told where it may run when it is woken, and now and then if it never sleeps.
define internal void @recruit(ptr %h, i64 %now) noinline {
entry:
  %lanes = pointer %h.Header.LANES
  %threads = word %h.Header.THREADS
  %pool = pointer %h.Header.POOL
  %num_workers = word %h.Header.NUM_WORKERS
  %work = word %h.Header.LARGE_WORK
  %slice = word %h.Header.SLICE_TICKS
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
  %t = atomic %taken acquire
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
  %m = atomic %mailbox monotonic
  %asleep64 = atomic %sleeping monotonic
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
  atomic %taken = 1 monotonic
  %lane_int = ptrtoint ptr %lane to i64
  %won = swap %mailbox, 0, %lane_int seq_cst seq_cst
  br i1 %won, label %offered, label %lost
lost:
  atomic %taken = 0 monotonic
  br label %worker_next
worker_next:
  br label %worker_head
offered:
  %asleep2 = atomic %sleeping seq_cst
  %must_wake = icmp ne i64 %asleep2, 0
  br i1 %must_wake, label %wake, label %awake_one
awake_one:
  %placed = word %worker.Worker.PLACED_AT
  %since = sub i64 %now, %placed
  %is_old = icmp sgt i64 %since, %slice
  br i1 %is_old, label %again, label %lane_next
again:
  call void @place(ptr %worker, i64 %now)
  br label %lane_next
wake:
  call void @place(ptr %worker, i64 %now)
  atomic %sleeping = 0 seq_cst
  %ignored = call i64 @futex(ptr %sleeping, i64 129, i64 1, ptr null)
  br label %lane_next
lane_next:
  %w_out = phi i64 [ %w, %lane_one ], [ %v, %worker_head ], [ %v1, %awake_one ],
                 [ %v1, %again ], [ %v1, %wake ]
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
  atomic %finished = 1 release
  %lanes = pointer %h.Header.LANES
  %threads = word %h.Header.THREADS
  each %l from 1 to %threads
  %lane_off = mul i64 %l, @LANE_BYTES
  %lane = getelementptr i8, ptr %lanes, i64 %lane_off
  %taken = at %lane.Lane.TAKEN
  %t = atomic %taken acquire
  %out = icmp ne i64 %t, 0
  br i1 %out, label %revoke, label %next
revoke:
  %worker = pointer %lane.Lane.WORKER
  %mailbox = at %worker.Worker.MAILBOX
  %lane_int = ptrtoint ptr %lane to i64
  %won = swap %mailbox, %lane_int, 0 seq_cst seq_cst
  br i1 %won, label %revoked, label %spin
revoked:
  atomic %taken = 0 monotonic
  br label %next
spin:
  %k = phi i64 [ 0, %revoke ], [ %k1, %pause ]
  %t2 = atomic %taken acquire
  %back = icmp eq i64 %t2, 0
  br i1 %back, label %next, label %pause
pause:
  call void @pause()
  %k1 = add i64 %k, 1
  %more = icmp slt i64 %k1, 2000
  br i1 %more, label %spin, label %sleep
sleep:
  %ignored = call i64 @futex(ptr %taken, i64 128, i64 1, ptr %timeout)
  %t3 = atomic %taken acquire
  %back2 = icmp eq i64 %t3, 0
  br i1 %back2, label %next, label %sleep
next:
  next %l
  set %h.Header.RECRUITED = 0
  ret void
}
"""

WORKER = """
; Take chunks of whatever step is published until the run ends, or nothing came for a while.
define internal void @help(ptr %h, ptr %lane) noinline {
entry:
  %steps = pointer %h.Header.STEPS
  %idle_ticks = word %h.Header.IDLE_TICKS
  %claim = at %h.Header.CLAIM
  %published_step = at %h.Header.PUBLISHED
  %published_chunks = at %h.Header.PUBLISHED_CHUNKS
  %done = at %h.Header.DONE
  %waiting = at %h.Header.WAITING
  %finished = at %h.Header.FINISHED
  %t0 = call i64 @ticks()
  %limit0 = add i64 %t0, %idle_ticks
  br label %look
look:
  %limit = phi i64 [ %limit0, %entry ], [ %limit, %try ], [ %limit, %idle ], [ %limit1, %worked ]
  %word = atomic %claim acquire
  %open = icmp sge i64 %word, 0
  br i1 %open, label %published, label %nothing
published:
  ; These two may be of a later epoch by now: then the swap fails, and they are not used.
  %index = atomic %published_step acquire
  %chunks = atomic %published_chunks acquire
  %next = and i64 %word, 4294967295
  %left = icmp slt i64 %next, %chunks
  br i1 %left, label %try, label %nothing
try:
  call void @dawdle(ptr %h, i64 3)
  %word1 = add i64 %word, 1
  %won = swap %claim, %word, %word1 seq_cst seq_cst
  br i1 %won, label %work, label %look
work:
  %step_word = shl i64 %index, 3
  %st = getelementptr i64, ptr %steps, i64 %step_word
  call void @dawdle(ptr %h, i64 0)
  call void @run_chunk(ptr %h, ptr %st, i64 %next, ptr %lane)
  %before = atomicrmw add ptr %done, i64 1 seq_cst
  %asleep = atomic %waiting seq_cst
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
  %f = atomic %finished acquire
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
  %won = swap %mailbox, 0, @STOP seq_cst seq_cst
  br i1 %won, label %wake, label %busy
wake:
  atomic %sleeping = 0 seq_cst
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
  %cpus = pointer %me.Worker.CPUS
  %is_bound = icmp ne ptr %cpus, null
  br i1 %is_bound, label %stay, label %rest
stay:
  %bound = call i64 @system(i64 @SYS_SET_AFFINITY, ptr null, i64 @MASK_BYTES, ptr %cpus, ptr null)
  br label %rest
rest:
  %spin_ticks = word %me.Worker.SPIN_TICKS
  %t0 = call i64 @ticks()
  %limit = add i64 %t0, %spin_ticks
  br label %spin
spin:
  %m = atomic %mailbox acquire
  %none = icmp eq i64 %m, 0
  br i1 %none, label %wait, label %called
called:
  %is_stop = icmp eq i64 %m, @STOP
  br i1 %is_stop, label %stop, label %accept
stop:
  %exited = at %me.Worker.EXITED
  atomic %exited = 1 release
  ret ptr null
wait:
  call void @pause()
  %t1 = call i64 @ticks()
  %late = sub i64 %t1, %limit
  %tired = icmp sgt i64 %late, 0
  br i1 %tired, label %lie_down, label %spin
lie_down:
  atomic %sleeping = 1 seq_cst
  %m2 = atomic %mailbox seq_cst
  %still_none = icmp eq i64 %m2, 0
  br i1 %still_none, label %sleep, label %get_up
sleep:
  %ignored = call i64 @futex(ptr %sleeping, i64 128, i64 1, ptr null)
  %m3 = atomic %mailbox seq_cst
  %nobody = icmp eq i64 %m3, 0
  %s = atomic %sleeping seq_cst
  %asleep = icmp ne i64 %s, 0
  %spurious = and i1 %nobody, %asleep
  br i1 %spurious, label %sleep, label %get_up
get_up:
  atomic %sleeping = 0 seq_cst
  br label %rest
accept:
  %accepted = or i64 %m, 1
  %won = swap %mailbox, %m, %accepted seq_cst seq_cst
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
  atomic %taken = 0 release
  atomic %mailbox = 0 release
  br label %rest
}
"""
