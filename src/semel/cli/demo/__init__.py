"""`semel demo`: a decoder, prepared once, that reads, writes, is measured and starts again.

command        the story, in order, and its exit code
report         what was found out, as data, and what must hold of it
screen         how it is told while it happens
peers          the same decoder with NumPy, torch and ONNX Runtime
race           all of them in turn, beside what the machine can do
second_start   a process that has only the plan file
words          a vocabulary
"""
