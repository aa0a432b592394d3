"""How a model gets its ops: each callable is selected once, when the model is built; nothing else is ever called."""

from __future__ import annotations

import attrs

from sparkwright.core.contracts import Op, OpSpec, SelectKernel
from sparkwright.core.kernels import reference
from sparkwright.plugins.deepseek_v4.linear import ExpertBank, Linear


def select_reference(op: OpSpec, *, dtype: str, format: str, widths: tuple[int, ...]) -> Op:
    """A `SelectKernel` that always answers with the reference: for tests, and for models built by hand."""
    return reference(op)


@attrs.frozen(eq=False)
class Kernels:
    """Kernel selection for one model: the activations' dtype is settled, formats and widths come from the weights."""

    select: SelectKernel
    dtype: str

    def op(self, spec: OpSpec, *weights: Linear | ExpertBank, widths: tuple[int, ...] = ()) -> Op:
        """The callable for `spec`. With weights: format is theirs, joined by "+" where they differ, and `widths` are
        their input size and each output size ([in, out, out, ...]; experts: [d, expert width, count])."""
        formats = list(dict.fromkeys(w.format for w in weights))
        if weights and not widths:
            first = weights[0]
            if isinstance(first, ExpertBank):
                widths = (first.w1.in_size, first.w1.out_size, first.count)
            else:
                widths = (first.in_size, *(w.out_size for w in weights if isinstance(w, Linear)))
        return self.select(spec, dtype=self.dtype, format="+".join(formats), widths=widths)
