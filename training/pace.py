"""What both training scripts need to go by the clock (or by steps), on one process or two: processes, CUDA graphs, the
schedule.

Two processes take the same decisions at the same step: the later clock decides, and neither runs ahead. Environment:
RANK and WORLD_SIZE as torchrun sets them (none: one process), MASTER_ADDR, MASTER_PORT.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from datetime import timedelta

import inputs
import torch
import torch.distributed as dist

RANK, WORLD = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))


def start(nccl: bool, asked: str | None = None) -> tuple[str, dist.ProcessGroup | None]:
    """asked: "cuda" or "cpu" (None: cuda where there is one) -> this process's device, and the group that gradients are
    averaged over (None: nothing to average)."""
    cuda = torch.cuda.is_available() if asked is None else asked == "cuda"
    if cuda and not torch.cuda.is_available():
        inputs.stop("--device cuda, and PyTorch finds no such device; --device cpu is slow, and serves to rehearse")
    device = f"cuda:{RANK % torch.cuda.device_count()}" if cuda else "cpu"
    if cuda:
        torch.cuda.set_device(device)
    torch.backends.cuda.matmul.allow_tf32 = True
    torch._dynamo.config.recompile_limit = 64
    torch._dynamo.config.suppress_errors = True  # a piece that does not compile runs as it is; the log says so
    if WORLD == 1:
        return device, None
    dist.init_process_group("gloo", timeout=timedelta(seconds=240))
    return device, (dist.new_group(backend="nccl" if cuda else "gloo") if nccl else None)


class Clock:
    """The share of the time that is spent, the same in every process; 1.0 or more is the end.

    With steps (0: none) it is the share of those that is asked for, whatever the time.
    """

    def __init__(self, seconds: float, steps: int = 0) -> None:
        if seconds <= 0 and not steps:
            inputs.stop(f"--seconds was over {-seconds:.0f} s before the first step could be made; give more seconds")
        self.began, self.seconds, self.steps, self.asked = time.perf_counter(), seconds, steps, 0
        self.event: torch.cuda.Event | None = None

    def share(self) -> float:
        """Asked for once before every step. Waits for the step before the last one, so that the host does not run ahead
        of the device."""
        if torch.cuda.is_available():
            if self.event is not None:
                self.event.synchronize()
            self.event = torch.cuda.Event()
            self.event.record()
        if self.steps:
            self.asked += 1
            return (self.asked - 1) / self.steps
        found = torch.tensor([(time.perf_counter() - self.began) / self.seconds], dtype=torch.float64)
        if WORLD > 1:
            dist.all_reduce(found, op=dist.ReduceOp.MAX)
        return float(found)


def meet() -> None:
    if WORLD > 1:
        dist.barrier()


def recorded(work: Callable[[], None], graph: bool, warm: int = 3) -> Callable[[], None]:
    """The work as one CUDA graph, after a few plain runs (the first compiles); or just the work."""
    if not graph:
        work()
        return work
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(warm):
            work()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured, capture_error_mode="thread_local"):
        work()
    torch.cuda.synchronize()
    return captured.replay
