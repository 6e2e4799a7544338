"""The runner's text for signals: a number that only grows, and those who wait for it.

    set: value, then whoever sleeps is woken      wait: look, spin, count oneself, look, sleep

Who is about to sleep counts itself before it looks for the last time, and who sets looks for
sleepers after the value is there: one of both sees the other. What is slept on is a word that
changes with each wake-up, since only half of the value would fit a futex.
"""

from __future__ import annotations

SIGNAL = """
; Let everybody go on who waits for this value or a smaller one; what was there before. If that is
; larger nothing has changed.
define dso_local i64 @signal_set(ptr %s, i64 %value) {
  %place = at %s.Signal.VALUE
  %before = atomicrmw max ptr %place, i64 %value seq_cst
  %counting = at %s.Signal.SLEEPERS
  %sleepers = atomic %counting seq_cst
  %are_some = icmp ne i64 %sleepers, 0
  when %are_some
  call void @signal_ring(ptr %s)
  end
  ret i64 %before
}

; Let everybody look who waits.
define dso_local void @signal_ring(ptr %s) noinline {
  %bell = at %s.Signal.BELL
  %before = atomicrmw add ptr %bell, i64 1 seq_cst
  %woken = call i64 @futex(ptr %bell, i64 129, i64 2147483647, ptr null)
  ret void
}

; Whether a value is reached, now or within so many ticks.
define internal i1 @signal_spin(ptr %s, i64 %value, i64 %spin_ticks) {
entry:
  %place = at %s.Signal.VALUE
  %t0 = call i64 @ticks()
  br label %look
look:
  %now = atomic %place acquire
  %is_reached = icmp sge i64 %now, %value
  br i1 %is_reached, label %reached, label %wait
wait:
  call void @pause()
  %t1 = call i64 @ticks()
  %spent = sub i64 %t1, %t0
  %is_tired = icmp sgt i64 %spent, %spin_ticks
  br i1 %is_tired, label %tired, label %look
reached:
  ret i1 true
tired:
  ret i1 false
}

; Sleep for so many ns at most, or until the bell, which was `seen`, changes; whether it is reached.
define internal i1 @signal_sleep(ptr %s, i64 %value, i64 %seen, i64 %ns) noinline {
  %timeout = alloca { i64, i64 }, align 8
  %seconds = udiv i64 %ns, 1000000000
  %rest = urem i64 %ns, 1000000000
  store i64 %seconds, ptr %timeout, align 8
  %at_rest = getelementptr i64, ptr %timeout, i64 1
  store i64 %rest, ptr %at_rest, align 8
  %place = at %s.Signal.VALUE
  %bell = at %s.Signal.BELL
  %counting = at %s.Signal.SLEEPERS
  %more = atomicrmw add ptr %counting, i64 1 seq_cst
  %now = atomic %place seq_cst
  %is_short = icmp slt i64 %now, %value
  when %is_short
  %slept = call i64 @futex(ptr %bell, i64 128, i64 %seen, ptr %timeout)
  end
  %fewer = atomicrmw sub ptr %counting, i64 1 seq_cst
  %then = atomic %place acquire
  %is_reached = icmp sge i64 %then, %value
  ret i1 %is_reached
}

@signal_spin_ticks = dso_local global i64 0, align 8

; Wait until a value is reached: 1; or 0 after a while, in which others may look at other things.
define dso_local i64 @signal_await(ptr %s, i64 %value) {
  %bell = at %s.Signal.BELL
  %seen = atomic %bell acquire
  %spin_ticks = load i64, ptr @signal_spin_ticks, align 8
  %found = call i64 @signal_wait(ptr %s, i64 %value, i64 %seen, i64 %spin_ticks, i64 50000000)
  ret i64 %found
}

; Wait until a value is reached: 1; or until the bell, which was `seen`, rings, or so many ns are
; over after the spin: 0.
define dso_local i64 @signal_wait(ptr %s, i64 %value, i64 %seen, i64 %spin_ticks, i64 %ns) {
  %is_soon = call i1 @signal_spin(ptr %s, i64 %value, i64 %spin_ticks)
  when %is_soon
  ret i64 1
  end
  %is_reached = call i1 @signal_sleep(ptr %s, i64 %value, i64 %seen, i64 %ns)
  %found = zext i1 %is_reached to i64
  ret i64 %found
}
"""
