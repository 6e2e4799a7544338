"""The runner's text for a lane: a thread that takes submissions in order.

    a ring of submissions  --lane-->  waits, runs of plans, a signal that counts what is over

The thread has no interpreter. What a run comes back for, and what is no run, it calls Python for:
it says why in one word of a signal, and goes on when another one has the answer. A run that came
back only to let Python look for signals of the system goes on at once: they are not its affair.
"""

from __future__ import annotations

LANE = """
; Let there be one more submission. A thread without CPUs of its own is moved off that of whoever
; submits: when it is woken, and now and then if it never sleeps. It may come back afterwards: other
; lanes want their CPUs too, and who submits may sleep.
define dso_local void @lane_submit(ptr %ring, i64 %value) {
entry:
  %submitted = pointer %ring.Ring.SUBMITTED
  %cpus = word %ring.Ring.CPUS
  %is_placed = icmp ne i64 %cpus, 0
  br i1 %is_placed, label %submit, label %look
look:
  %counting = at %submitted.Signal.SLEEPERS
  %sleepers = atomic %counting monotonic
  %placed_at = word %ring.Ring.PLACED_AT
  %place_ticks = word %ring.Ring.PLACE_TICKS
  %now = call i64 @ticks()
  %since = sub i64 %now, %placed_at
  %is_old = icmp sgt i64 %since, %place_ticks
  %is_asleep = icmp ne i64 %sleepers, 0
  %must = or i1 %is_old, %is_asleep
  %thread = pointer %ring.Ring.OWNER
  %has_started = icmp ne ptr %thread, null
  %now_is_the_time = and i1 %must, %has_started
  br i1 %now_is_the_time, label %place, label %submit
place:
  set %ring.Ring.PLACED_AT = %now
  call void @place_thread(ptr %thread, ptr null)
  %before0 = call i64 @signal_set(ptr %submitted, i64 %value)
  call void @free_thread(ptr %thread)
  ret void
submit:
  %before = call i64 @signal_set(ptr %submitted, i64 %value)
  ret void
}

; Wait for a value of a signal, in slices of so many ns; false if the lane is to end before, for
; which END must be `least` at least. The value is read again and again: Python may write one there
; that is reached, and ring.
define internal i1 @lane_wait(ptr %ring, ptr %s, ptr %wanted, i64 %spin_ticks, i64 %least, i64 %ns)
    noinline {
entry:
  %bell = at %s.Signal.BELL
  %ending = at %ring.Ring.END
  %first = atomic %wanted monotonic
  %is_soon = call i1 @signal_spin(ptr %s, i64 %first, i64 %spin_ticks)
  br i1 %is_soon, label %reached, label %look
look:
  %seen = atomic %bell seq_cst
  %value = atomic %wanted seq_cst
  %end = atomic %ending seq_cst
  %is_over = icmp sge i64 %end, %least
  br i1 %is_over, label %over, label %sleep
sleep:
  %is_reached = call i1 @signal_sleep(ptr %s, i64 %value, i64 %seen, i64 %ns)
  br i1 %is_reached, label %reached, label %look
over:
  ; What was asked for before the end counts.
  %is_late = call i1 @signal_spin(ptr %s, i64 %value, i64 0)
  ret i1 %is_late
reached:
  ret i1 true
}

; Tell Python; the word that its answer must reach.
define internal i64 @lane_tell(ptr %ring, i64 %code) noinline {
  %count = word %ring.Ring.NUM_CALLS
  %count1 = add i64 %count, 1
  set %ring.Ring.NUM_CALLS = %count1
  %base = shl i64 %count1, 8
  %word = or i64 %base, %code
  %calls = pointer %ring.Ring.CALLS
  %before = call i64 @signal_set(ptr %calls, i64 %word)
  ret i64 %base
}

; Call Python, and wait for the verdict; -1 if the lane is to end now.
define internal i64 @lane_ask(ptr %ring, i64 %code) noinline {
  %base = call i64 @lane_tell(ptr %ring, i64 %code)
  %answers = pointer %ring.Ring.ANSWERS
  %wanted = alloca i64, align 8
  store i64 %base, ptr %wanted, align 8
  ; Not for long: Python may need this very CPU to come to it.
  %patience = word %ring.Ring.SPIN_TICKS
  %spin_ticks = lshr i64 %patience, 5
  %is_there = call i1 @lane_wait(ptr %ring, ptr %answers, ptr %wanted, i64 %spin_ticks,
                                 i64 @END_NOW, i64 10000000)
  unless %is_there
  ret i64 -1
  end
  %place = at %answers.Signal.VALUE
  %answer = atomic %place acquire
  %verdict = and i64 %answer, 255
  ret i64 %verdict
}

; Wait for all that a submission must follow: what that stands for has gone well, 1, or some of it
; may have failed, 0; -1 if the lane is to end now.
define internal i64 @lane_follow(ptr %ring, ptr %submission) noinline {
  %is_good = alloca i64, align 8
  store i64 1, ptr %is_good, align 8
  %spin_ticks = word %ring.Ring.SPIN_TICKS
  %count = word %submission.Submission.NUM_WAITS
  %pairs = pointer %submission.Submission.WAITS
  each %k from 0 to %count
  %k2 = shl i64 %k, 1
  %pair = getelementptr i64, ptr %pairs, i64 %k2
  %s = load ptr, ptr %pair, align 8
  %at_value = getelementptr i64, ptr %pair, i64 1
  %is_there = call i1 @lane_wait(ptr %ring, ptr %s, ptr %at_value, i64 %spin_ticks,
                                 i64 @END_NOW, i64 10000000)
  unless %is_there
  ret i64 -1
  end
  %value = atomic %at_value monotonic
  %failing = at %s.Signal.LAST_FAILED
  %failed = atomic %failing acquire
  %may_be_bad = icmp sle i64 %value, %failed
  when %may_be_bad
  store i64 0, ptr %is_good, align 8
  end
  next %k
  %found = load i64, ptr %is_good, align 8
  ret i64 %found
}

; Run a plan as far as it goes without Python: the code that it came back with.
define internal i64 @lane_run(ptr %ring, ptr %h) noinline {
entry:
  %ending = at %ring.Ring.END
  %asking = at %h.Header.ASKED
  call void @dawdle(ptr %h, i64 3)
  br label %enter
enter:
  %code = call i64 @run(ptr %h)
  %is_again = icmp eq i64 %code, @Code.AGAIN
  br i1 %is_again, label %came_back, label %exit
came_back:
  %asked = atomic %asking acquire
  %end = atomic %ending acquire
  %either = or i64 %asked, %end
  %is_wanted = icmp ne i64 %either, 0
  br i1 %is_wanted, label %exit, label %go_on
go_on:
  %parked = word %h.Header.PARKED
  set %h.Header.RESUME = %parked
  br label %enter
exit:
  ret i64 %code
}

; One submission, from its begin to its end; false if the lane is to end now.
define internal i1 @lane_do(ptr %ring, ptr %submission) noinline {
entry:
  %count = word %submission.Submission.NUM_WAITS
  %is_free = icmp eq i64 %count, 0
  br i1 %is_free, label %begin, label %follow
follow:
  %found = call i64 @lane_follow(ptr %ring, ptr %submission)
  switch i64 %found, label %over [ i64 0, label %doubt
                                   i64 1, label %begin ]
begin:
  %h = pointer %submission.Submission.HEADER
  %is_plan = icmp ne ptr %h, null
  br i1 %is_plan, label %run, label %ask
run:
  %code = call i64 @lane_run(ptr %ring, ptr %h)
  %is_ok = icmp eq i64 %code, @Code.OK
  br i1 %is_ok, label %done, label %ask
doubt:
  br label %ask
ask:
  %why = phi i64 [ @Call.WORK, %begin ], [ %code, %run ], [ @Call.DOUBT, %doubt ]
  %verdict = call i64 @lane_ask(ptr %ring, i64 %why)
  switch i64 %verdict, label %over [ i64 @Verdict.DONE, label %done
                                     i64 @Verdict.RUN, label %begin ]
done:
  ret i1 true
over:
  ret i1 false
}

; The same, and when that was is written down.
define internal i1 @lane_do_timed(ptr %ring, ptr %submission, i64 %index, i64 %log) noinline {
  %start = inttoptr i64 %log to ptr
  %offset = mul i64 %index, @TIMES_BYTES
  %times = getelementptr i8, ptr %start, i64 %offset
  %taken = call i64 @ticks()
  set %times.Times.TAKEN = %taken
  ; What is waited for here `lane_do` finds reached.
  %found = call i64 @lane_follow(ptr %ring, ptr %submission)
  %begun = call i64 @ticks()
  set %times.Times.BEGUN = %begun
  %goes_on = call i1 @lane_do(ptr %ring, ptr %submission)
  %ended = call i64 @ticks()
  set %times.Times.ENDED = %ended
  ret i1 %goes_on
}

; The thread of a lane.
define dso_local ptr @lane(ptr %ring) {
entry:
  %thread_id = call i64 @system(i64 @SYS_GETTID, ptr null, i64 0, ptr null, ptr null)
  %owning = at %ring.Ring.OWNER
  %is_first = swap %owning, 0, %thread_id seq_cst seq_cst
  br i1 %is_first, label %place, label %second
second:
  ret ptr null
place:
  %wanted = alloca i64, align 8
  %inherited = call i64 @float_mode()
  %cpus = pointer %ring.Ring.CPUS
  %is_placed = icmp ne ptr %cpus, null
  br i1 %is_placed, label %move, label %start
move:
  %moved = call i64 @system(i64 @SYS_SET_AFFINITY, ptr null, i64 @MASK_BYTES, ptr %cpus, ptr null)
  br label %start
start:
  %slots = pointer %ring.Ring.SLOTS
  %submitted = pointer %ring.Ring.SUBMITTED
  %done = pointer %ring.Ring.DONE
  %first = word %ring.Ring.FIRST
  br label %next
next:
  %n = phi i64 [ %first, %start ], [ %n1, %did ]
  %n1 = add i64 %n, 1
  %spin_ticks = word %ring.Ring.SPIN_TICKS
  %is_soon = call i1 @signal_spin(ptr %submitted, i64 %n1, i64 %spin_ticks)
  br i1 %is_soon, label %take, label %idle
idle:
  %told = call i64 @lane_tell(ptr %ring, i64 @Call.IDLE)
  store i64 %n1, ptr %wanted, align 8
  %is_there = call i1 @lane_wait(ptr %ring, ptr %submitted, ptr %wanted, i64 0, i64 @END_IDLE,
                                 i64 3600000000000)
  br i1 %is_there, label %take, label %exit
take:
  %ending = at %ring.Ring.END
  %end = atomic %ending acquire
  %is_over = icmp sge i64 %end, @END_NOW
  br i1 %is_over, label %exit, label %begin
begin:
  %index = urem i64 %n, @MAX_SUBMISSIONS
  %offset = mul i64 %index, @SUBMISSION_BYTES
  %submission = getelementptr i8, ptr %slots, i64 %offset
  %logging = at %ring.Ring.LOG
  %log = atomic %logging acquire
  %is_timed = icmp ne i64 %log, 0
  br i1 %is_timed, label %do_timed, label %do
do:
  %goes_on = call i1 @lane_do(ptr %ring, ptr %submission)
  br i1 %goes_on, label %did, label %exit
do_timed:
  %goes_on_too = call i1 @lane_do_timed(ptr %ring, ptr %submission, i64 %index, i64 %log)
  br i1 %goes_on_too, label %did, label %exit
did:
  %before = call i64 @signal_set(ptr %done, i64 %n1)
  br label %next
exit:
  ; Whoever sees that the thread is over may drop the ring: nothing of it is touched afterwards.
  %count = word %ring.Ring.NUM_CALLS
  %count1 = add i64 %count, 1
  %base = shl i64 %count1, 8
  %word = or i64 %base, @Call.EXIT
  %calls = pointer %ring.Ring.CALLS
  %exited = at %ring.Ring.EXITED
  atomic %exited = 1 release
  %last = call i64 @signal_set(ptr %calls, i64 %word)
  ret ptr null
}
"""
