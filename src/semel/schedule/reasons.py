"""Why nodes are computed in kernels of their own, as records.

    scheduler --Why--> Reason (a node, and why) --Schedule.log, ProgramOp.reason--> people

Every rule that refuses to compute a node inside a kernel that wants it names one of these.
The `code` is for programs and tests, the `text` for people; nothing ever reads a text to learn
something from it.
"""

from __future__ import annotations

from dataclasses import dataclass

from semel.ir.graph import Node


@dataclass(frozen=True, slots=True)
class Why:
    """A cause: `code` names the rule, `text` says what it found, as the end of a sentence."""

    code: str
    text: str

    @property
    def sentence(self) -> str:
        return f"{self.text}."


@dataclass(frozen=True, slots=True)
class Reason:
    """`node` starts a kernel, because of `why`; or it is computed beside `joins` instead."""

    node: Node
    why: Why
    joins: Node | None = None

    def __str__(self) -> str:
        verb = "starts a kernel" if self.joins is None else f"joins {self.joins!r}"
        return f"{self.node!r} {verb}: {self.why.sentence}"


IS_OUTPUT = Why("output", "it is an output")
TELLS_SIZE = Why("size", "it tells a size")
IS_KEPT = Why("kept", "it is kept to be read")
LEFT_BY_ITERATION = Why("iteration", "it is what an iteration leaves behind")
SETS_STATE = Why("set_state", "a loop's state has a first value")
LEAVES_STATE = Why("leave_state", "a loop's last state is its result")
GOES_ELSEWHERE = Why("elsewhere", "it goes to another device, by a copy")
FUSION_OFF = Why("fusion_off", "fusion is off")
UNWANTED = Why("unwanted", "no group wants it")
RESULT_OF_BRANCH = Why("branch", "it is what a branch gives")
PREDICATE = Why("predicate", "a branch looks for its predicate in one place")
SAME_READS = Why("same_reads", "they read the same tensor")
ONE_NUMBER = Why("one_number", "each computes one number")

UPDATES_STATE = Why("update", "it is the next value of a state")
APPENDED = Why("behind_cursor", "new rows lie behind all that anybody reads of the old value")
READ_BEFORE = Why("read_before", "whoever reads the old value does so before it is overwritten")
OLD_IF_FAILED = Why("old_if_failed", "a run that fails must leave the old value as it was")
READ_ELSEWHERE = Why(
    "read_elsewhere", "the kernel that makes the next value reads other elements of the old one"
)
NEEDS_BOTH = Why("needs_both", "what reads the old value needs the next one")
OLD_COPIED = Why("old_copied", "what reads the old value needs the next one, and reads a copy")
NEW_APART = Why("new_apart", "the new elements need others of the old value, and are made first")

TOO_LARGE = Why("too_large", "the kernel would grow too large")
DEAR_INDEX = Why("dear_index", "its index would cost more than storing it")
JOINED_AGAIN = Why("joined_again", "its many parts are joined before they are joined with others")
FOLLOWS_CONTRACTION = Why(
    "follows_contraction", "it follows a contraction, which computes it on its registers"
)
FOLLOWS_KERNEL = Why(
    "follows_kernel", "the kernel before it, of a contraction or of rows, computes it on the way"
)
REPEATED = Why("repeated", "it would be computed again in every iteration of an outer loop")
ASKED_OFTEN = Why("asked_often", "windows would compute each of its elements again and again")
REPEATED_BY_COLUMNS = Why(
    "repeated_by_columns", "it would be computed again for every block of columns"
)

PARTIAL = Why("partial", "a partial reduction has its own tiles")
BESIDE_CONTRACTION = Why("beside_contraction", "the group has a contraction")
OTHER_LOOPS = Why("other_loops", "its rows are not loops of the group")
LONGER_LOOPS = Why("longer_loops", "the group's loops go beyond its rows")
WINDOWS_ACROSS = Why(
    "windows_across", "its windows lie along another axis than the group's vectors"
)
STORED_ACROSS = Why(
    "stored_across", "its vectors lie along another axis than the last one of the group"
)
WINDOWS_OFTEN = Why("windows_often", "windows read it often, in another order than it lies in")
OTHER_ROWS = Why("other_rows", "the group reduces over other rows")
ONE_THREAD = Why("one_thread", "one thread would do all of it")

BESIDE_REDUCTION = Why("beside_reduction", "the group reduces")
NOT_ONE_BY_ONE = Why("not_one_by_one", "its elements are not wanted one by one")
BEYOND_ELEMENTS = Why("beyond_elements", "the group's loops go beyond its elements")
SECOND_CONTRACTION = Why("second_contraction", "the group has a contraction already")
SCORES_APART = Why("scores_apart", "the scores are not wanted one by one")

OPERAND = Why("operand", "a contraction reads its operands from memory")
ATTENDED = Why("attended", "an attention reads its operands from memory")
QUERIES = Why("queries", "an attention reads its queries from memory")
SLOW_VIEW = Why("slow_view", "the view is not contiguous enough for the contraction")
NO_ROWS = Why("no_rows", "the view has no contiguous rows")
CROOKED_ROWS = Why("crooked_rows", "its rows do not lie straight")


def own_group(op: str) -> Why:
    """The op has bodies, whose kernels compute nothing else."""
    return Why(op, f"{op} is a group of its own")


def own_kernel(op: str) -> Why:
    """The op is lowered by a rule of its own, which computes nothing else."""
    return Why("own_kernel", f"{op} is a kernel of its own")


def whole_operand(op: str) -> Why:
    """Who wants the node takes operands from memory only."""
    return Why("whole_operand", f"{op} reads its operands from memory")


def read_whole(op: str) -> Why:
    """The op that reads the node wants all of it before it begins."""
    return Why("read_whole", f"{op} reads it from memory")


def many_indices(count: int) -> Why:
    """One kernel wants the node in several places."""
    return Why("many_indices", f"it is wanted at {count} indices")


def many_kernels(count: int) -> Why:
    """Several kernels want the node, and none should compute it again."""
    return Why("many_kernels", f"{count} kernels want it and it is dear to compute twice")


def other_dtype(dtype: object) -> Why:
    """The attention that wants these scores computes in another dtype."""
    return Why("other_dtype", f"the attention computes in {dtype}")
