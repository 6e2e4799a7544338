"""The lazy front door: `Tensor`, and the functions on it.

    user code  -->  Tensor (a handle on a graph node)  -->  Graph  -->  ExecutionPlan

`Tensor` is one class written in layers, each a class of its own that speaks only the words
of the layers below it, so that no two modules import each other:

    handle -> movement -> elementwise -> activations -> reduce -> contract -> indexing
           -> assign -> order -> late -> nn -> conv -> pool -> quantise -> creation -> random
           -> loop -> recurrent -> realize -> tensor -> functions

Nothing here computes: every method adds nodes, and a composition such as softmax is nodes
of primitive ops, which the compiler fuses.
"""
