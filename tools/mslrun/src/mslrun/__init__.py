"""mslrun: run Metal Shading Language kernels on an x86-64 CPU, with checks. See README.md.

`mslrun.mlx_hook` (needs MLX) runs `mx.fast.metal_kernel` calls; it is not imported here.
"""

from mslrun.errors import Finding, KernelFault, MslError, ToolchainError
from mslrun.library import InOut, Library, Out, Result
from mslrun.lint import lint

__all__ = [
    "Finding",
    "InOut",
    "KernelFault",
    "Library",
    "MslError",
    "Out",
    "Result",
    "ToolchainError",
    "lint",
]
