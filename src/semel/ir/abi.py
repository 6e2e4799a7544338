"""The words of the native plan runner: one layout for its emitter and for its tables.

    codegen.runner (emits code that reads them)  <--abi-->  runtime.optable (writes them)

Every table is an array of 64-bit words; an enum below names the words of one record. The
kernel ABI itself stands in `semel.ir.signature`; the lane record that a kernel sees starts
here. Adding a word at the end of a record is compatible; anything else changes
`RUNNER_VERSION`.
"""

from __future__ import annotations

from enum import IntEnum

RUNNER_VERSION = 5
WORD_BYTES = 8

LANE_WORDS = 16
ROW_WORDS = 8
SEGMENT_WORDS = 8
STEP_WORDS = 8
INSTRUCTION_WORDS = 4
HEADER_WORDS = 80
EVENT_WORDS = 4
POINT_WORDS = 16
BASE_WORDS = 4
WORKER_WORDS = 16
SIGNAL_WORDS = 8
RING_WORDS = 16
TIMES_WORDS = 4
SUBMISSION_WORDS = 16

UNBOUND = -(1 << 63)  #: the value of a variable that was never bound; lies outside all bounds
ONLY_MOVED = 2  #: the dirty word if bases moved and nothing else changed
HAS_LIMIT = 1  #: the asked word of a run that looks at the clock before each step
COME_BACK = 2  #: ... and of one that comes back before the next, to be given up
NEWS = 3  #: ... or to look at what other lanes want
NO_CLAIM = -1  #: the claim word while no step is published
STOP = -1  #: in a mailbox: the worker ends
MASK_WORDS = 16  #: CPUs that a worker's affinity can name, in words
MAX_SUBMISSIONS = 256  #: of a lane, begun or not; a power of 2
END_IDLE = 1  #: in a ring: the lane's thread ends when nothing is left to do
END_NOW = 2  #: ... and as soon as it can
NO_FAILURE = -(1 << 63)  #: below all values of signals
NUM_ENTRIES = 64  #: plans that one loaded copy of the runner serves

LARGE_NS = 20_000  #: a step with less estimated work is run by the caller alone
WAKE_NS = 200_000  #: a plan with less estimated work wakes no sleeping worker


class Lane(IntEnum):
    """A participant's record, 64-byte aligned; kernels see the first six words."""

    INDEX = 0
    SCRATCH = 1
    ROW = 2  # the runner writes the row index before each call
    STATUS_CODE = 3  # 0, or the 1-based index of the failed check
    STATUS_ROW = 4
    STATUS_VALUE = 5
    TAKEN = 6  # 1 while offered to or used by a worker
    WORKER = 7  # the record of that worker
    HEADER = 8
    BEST_CODE = 9  # 0, or the code of the lowest failure of this run: (row, tile) order
    BEST_ROW = 10
    BEST_TILE = 11
    BEST_VALUE = 12
    EVENTS = 13  # event records of a profiled run; 0: the run is not profiled
    NUM_EVENTS = 14  # calls so far, of which ...
    MAX_EVENTS = 15  # ... this many fit the records


class Event(IntEnum):
    """One call of a row by one lane in a profiled run; times in ticks."""

    ROW = 0
    START = 1
    END = 2
    TILES = 3


class Header(IntEnum):
    """A plan's native state. Words that other threads poll have a cache line of their own."""

    BUSY = 0
    GENERATION = 1  # successful executes
    VALID = 2  # 1: the outputs are those of the last execute
    DIRTY = 3  # 1: variables or input shapes changed, rebind before running; or ONLY_MOVED
    NUM_VARIABLES = 4
    VARIABLES = 5  # current values
    PENDING = 6  # values to bind
    BOUNDS = 7  # (min, max) per variable
    REGISTERS = 8  # variables, constants, results of instructions
    PROGRAM = 9  # instructions: those of guards and checks first
    NUM_CHECKED = 10  # ... this many
    NUM_INSTRUCTIONS = 11
    GUARDS = 12  # (register, number) pairs: the registers must be zero
    NUM_GUARDS = 13
    CHECKS = 14  # (register, address of a recorded input dim) pairs that must agree
    NUM_CHECKS = 15
    SCATTER = 16  # (register, address) pairs
    NUM_SCATTER = 17
    ROWS = 18
    SEGMENTS = 19
    STEPS = 20
    NUM_STEPS = 21
    LANES = 22
    THREADS = 23  # participants at most, the caller included
    POOL = 24  # worker records
    NUM_WORKERS = 25
    POOL_READY = 26
    LARGE_WORK = 27  # estimated ns in steps worth sharing
    RESUME = 28  # 1 + step to go on with, set by Python; counters of loops keep their values
    PARKED = 29  # 1 + step at which the runner came back
    ERROR_INDEX = 30  # variable, guard or check that failed; row of a host call or of a status
    STATUS_CODE = 31
    STATUS_VALUE = 32
    USED_LANES = 33
    RECRUITED = 34
    DEADLINE = 35
    SLICE_TICKS = 36  # the runner comes back to Python after this long
    IDLE_TICKS = 37  # an attached worker without work leaves after this long
    JITTER = 38  # 1: participants dawdle at random before each chunk
    SOLO = 39  # 1: a worker kept the caller waiting; the rest of this run is not shared
    CLAIM = 40  # epoch << 32 | next chunk of the published step, which is ...
    PUBLISHED = 41  # ... this one, ...
    PUBLISHED_CHUNKS = 42  # ... cut into so many; both are of that epoch if the claim still is
    DONE = 48  # chunks finished of the published step
    WAITING = 56  # 1 while the caller sleeps on DONE
    FINISHED = 57
    SOLO_UNTIL = 58  # no workers before this tick: the last ones had lost their cores
    BACKOFF = 59  # how many ticks the next such rest lasts
    FAILED = 60  # 1: a check of this run failed, so that loops end with their iteration
    EPOCH = 61  # of the last step that was published
    STEP_RUNS = 62  # (runs, shared runs) of each step, counted by a profiled run
    ATTEMPTS = 63  # runs that were started
    BASES = 64
    NUM_BASES = 65
    MOVED = 66  # 1: some of them moved, write their words before running
    HAS_COMMIT = 67  # 1: a run that succeeds does one of these:
    HELD = 68  # (register, variable) pairs: the variable's pending value becomes the register's
    NUM_HELD = 69
    FLIPS = 70  # pairs of bases that change places
    NUM_FLIPS = 71
    ASKED = 72  # 0, HAS_LIMIT, or COME_BACK or NEWS, which others write: what holds before a step
    UNTIL = 73  # the tick from which on a run comes back before its next step; 0: no limit


class Row(IntEnum):
    """One call: a kernel over its tiles, a copy, a return to Python, or a control row.

    Control rows are alone in their steps. The two rows of a loop and a rebind have a point as
    FUNCTION, the former the number of iterations as TILES; a branch and a jump have a step there, a
    wait and a signal the words of a signal, with the value as their one of VALUES.
    """

    KIND = 0
    FUNCTION = 1
    TARGET = 1  # a branch or a jump: the step to go on with
    BUFFERS = 2  # a branch: where its condition lies; a rebind: where each late variable does
    VALUES = 3  # a copy: its size in bytes
    TILES = 4
    WORK_NS = 5
    TILE_BYTES = 6  # a copy: bytes per tile


class RowKind(IntEnum):
    """What a row does."""

    KERNEL = 0
    COPY = 1
    HOST_CALL = 2
    LOOP = 3  # begins the iterations, or goes behind the END if there are none
    END = 4  # the next iteration, or on
    BRANCH = 5  # goes to a later step if the byte at an address is 0
    REBIND = 6  # late variables get their values, which are checked
    WAIT = 7  # goes on when a signal has reached a value
    SIGNAL = 8  # lets a signal reach a value
    JUMP = 9  # goes to a later step


class Point(IntEnum):
    """A place in the run where registers change: a loop's iterations, or a rebind."""

    COUNTER = 0  # a loop: address of the register that kernels see as a variable
    FIRST_INSTRUCTION = 1  # the instructions that depend on what changes: of guards first ...
    CHECKED_INSTRUCTION = 2  # ... up to here; the rest ...
    LAST_INSTRUCTION = 3  # ... ends before this one
    SCATTER = 4  # (register, address) pairs that do
    NUM_SCATTER = 5
    CUTS = 6  # steps whose chunks do
    NUM_CUTS = 7
    BODY = 8  # a loop: the first step of an iteration
    AFTER = 9  # a loop: the step behind it
    TIMES = 10  # a loop: how often it is begun, for the estimate of the work
    LATE = 11  # a rebind: (register, min, max) of each late variable
    NUM_LATE = 12
    GUARDS = 13  # a rebind: (register, number) pairs
    NUM_GUARDS = 14
    ATTEMPT = 15  # a rebind: the run that came here last, by Header.ATTEMPTS


class Base(IntEnum):
    """Memory that may lie elsewhere at the next run."""

    ADDRESS = 0
    HAS_MOVED = 1  # 1: the words below have an older address
    WORDS = 2  # (address of a word, offset) pairs: the word is ADDRESS + offset
    NUM_WORDS = 3


class Segment(IntEnum):
    """Rows that run range by range of their common tiles, without a barrier between them."""

    FIRST_ROW = 0
    NUM_ROWS = 1
    TILES = 2
    FIRST_CHUNK = 4
    NUM_CHUNKS = 5


class Step(IntEnum):
    """Segments without hazards among them; a barrier follows."""

    FIRST_SEGMENT = 0
    NUM_SEGMENTS = 1
    FIRST_ROW = 2
    NUM_ROWS = 3
    NUM_CHUNKS = 4
    WORK_NS = 5
    SHARED = 6  # 1: worth publishing to workers
    KIND = 7  # HOST_CALL, a control row's kind, or KERNEL for all that rows do


class Worker(IntEnum):
    """A pool thread's record, 128 bytes."""

    MAILBOX = 0  # 0 free, a lane offered, or that lane | 1 accepted
    SLEEPING = 1
    SPIN_TICKS = 2
    EXITED = 3
    THREAD_ID = 4
    PLACED_AT = 5  # ticks when it was told last on which CPUs it may run
    CPUS = 6  # where the mask of those lies; 0: those of whoever it works for


class Signal(IntEnum):
    """A number that only grows, on a cache line of its own."""

    VALUE = 0
    SLEEPERS = 1  # threads that sleep on BELL, or are about to
    BELL = 2  # changes whenever they are to look
    LAST_FAILED = 3  # of the values that stand for work that failed, the largest


class Ring(IntEnum):
    """A lane's submissions and its thread. What threads wait for are signals."""

    SLOTS = 0  # its submissions: number n lies at n % MAX_SUBMISSIONS
    SUBMITTED = 1  # a signal: how many there have been
    DONE = 2  # a signal: how many are over
    CALLS = 3  # a signal: how often Python was called, with what for in the low byte
    ANSWERS = 4  # a signal: how often it has answered, with a Verdict in the low byte
    SPIN_TICKS = 5
    CPUS = 6  # a mask of where the thread may run; 0: wherever its creator may
    END = 7  # 0, END_IDLE, END_NOW
    OWNER = 8  # the thread, by the system's number
    EXITED = 9
    NUM_CALLS = 10
    FIRST = 11  # the number of the submission to begin with
    PLACED_AT = 12  # ticks when the thread was told last to stay off the CPU of who submits
    PLACE_TICKS = 13  # how long that holds while it does not sleep
    LOG = 14  # where the Times of submission number n go, at n % MAX_SUBMISSIONS; 0: nowhere


class Times(IntEnum):
    """When a lane was at a submission, in ticks."""

    TAKEN = 0  # from here on it waited for what comes before
    BEGUN = 1
    ENDED = 2


class Submission(IntEnum):
    """What a lane is to do, and when."""

    HEADER = 0  # of the plan to run; 0: Python does it
    NUM_WAITS = 1
    WAITS = 2  # (signal, value) pairs that must be reached before
    PAIRS = 4  # room for six of them


class Call(IntEnum):
    """What a lane calls Python for, beside the codes of plans."""

    WORK = 32  # a submission without a header
    DOUBT = 33  # a signal that was waited for may stand for work that failed
    IDLE = 34  # there is nothing to do; goes on without an answer
    EXIT = 35  # the thread is over; likewise


class Verdict(IntEnum):
    """What Python answers."""

    DONE = 0  # the submission is over
    RUN = 1  # run it, or go on with the run


class Code(IntEnum):
    """What the entry of a plan returns."""

    OK = 0
    BUSY = 1
    RELEASED = 2
    VARIABLE = 3  # at the bind, or at a rebind: then the run is over
    GUARD = 4  # likewise
    INPUT = 5
    STATUS = 6
    HOST_CALL = 7
    START_POOL = 8
    AGAIN = 9


class Opcode(IntEnum):
    """Instructions of the rebind program: registers[dst] = registers[a] op registers[b]."""

    ADD = 0
    MUL = 1
    FLOORDIV = 2
    MOD = 3
    MIN = 4
    MAX = 5
