"""Look inside: the same small softmax as graph, schedule, kernel and LLVM code.

Run it: python examples/03_look_inside.py

`SEMEL_DUMP=dir` writes these products of every prepare to files.
"""

from semel import Tensor, Variable
from semel.codegen.emit import emit_kernel
from semel.devices.cpu.toolchain import assembly, host_target
from semel.ir.text import format_graph
from semel.kernel.text import format_kernel
from semel.lower import lower_schedule
from semel.passes import run_passes
from semel.schedule.groups import build_schedule
from semel.tensor.realize import build_graph

n = Variable("n", 1, 64)
x = Tensor.input("x", (n, 48), "float32")
graph = build_graph({"y": (x * 0.125).softmax(-1)})

print("== the graph as it was written")
print(format_graph(graph))

graph = run_passes(graph)
print("\n== after the passes")
print(format_graph(graph))

schedule = build_schedule(graph)
print(f"\n== the schedule: {len(schedule.groups)} kernel, and why it starts where it does")
print("\n".join(schedule.log))

target = host_target()
for lowered in lower_schedule(schedule, target):
    print("\n== the kernel: loops over tiles, lanes of vectors")
    print(format_kernel(lowered.kernel))
    code = emit_kernel(lowered.kernel, target, "softmax")
    print("\n== its LLVM IR, the first lines of", code.count("\n"))
    print("\n".join(code.splitlines()[:24]))
    print("\n== and its machine code, the first instructions")
    print("\n".join(assembly(code, target).partition("\nsoftmax:")[2].splitlines()[1:16]))
